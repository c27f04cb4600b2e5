"""A folder of runs in the browser, as it is now: `trimtab serve DIR…`. It writes nothing."""

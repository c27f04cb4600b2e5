"""Published rules of other projects, re-implemented from descriptions for comparison.

- `contract`: what such a rule is: columns of a log in, a mark per row out.
- `table`: all of them with their defaults, and those that no log can feed, with the reason.
- `alarms`: the marks of a rule on a record, joined to alarms with a kind.

None of this judges a run for a user; `trimtab bench` sets it beside trimtab's own findings.
"""

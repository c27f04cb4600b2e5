"""Free-form text logs of any trainer, read without a parser for each.

One pass over the lines, then decisions over the whole file:

1. `reader` opens the file and feeds its lines, one by one (`plain_forms` puts values that a call or
   a comma names into `key = value`), to
2. `shapes`, which takes the numbers out of a line; lines with the same rest are one shape, and a
   shape is parsed only once, by `key_values` (`key: 1`, `| key | 1 |`) or `header` (a table);
3. `keys` says what a key means: a loss, another signal, a step, an epoch, a rank. It also says how
   sure that is (`doubt`): 0 for a known key, more for each word that was dropped or guessed.
4. `rows` picks the lines that hold the training loss and joins what stands around them;
5. `axis` finds what counts those rows: a step, an epoch, or only their order;
6. `resolve` turns the result into a `RunRecord`, with notes on what was guessed.

`formats` lists the trainers whose text is recognized by name: for them a few keys are given a
meaning in advance, everything else is the same.
"""

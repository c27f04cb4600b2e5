"""What a key names by the words in it, where no list has it as a whole.

Loggers combine the same few words in any order: `mean 100 episode reward`, `avg_return (100)`,
`train_loss_total`, `val_sparse_categorical_accuracy`, `lr_d`. A key is known here only if each of
its words is: a word that nobody knows (`max`, `std`, `format`) may turn it into something else.
"""

import re

__all__ = [
    "HELD_OUT_SETS",
    "LOSS_FUNCTIONS",
    "TRAINING_SETS",
    "is_length",
    "is_mean_score",
    "is_setting",
    "join_held_out",
    "name_norms",
    "said_by_words",
]

_MOST_CHARS = 60
_MOST_WORDS, _MOST_WORDS_OF_SETTING = 8, 5


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


HELD_OUT_SETS = _set(
    "val valid vali validation vld va eval evaluation test testing tst te dev heldout holdout unseen"
)
"""Words for data that nothing is learned from, as `normalise` gives them."""
LOSS_FUNCTIONS = _set("bce bpr crossentropy ctc deviance logloss mae mse msle nll rmse rmsle xent")
"""Words for what a loss is counted with, which may be all that it is called by."""
TRAINING_SETS = _set("train training trn tr")
_HELD_OUT = re.compile(r"(?<![a-z])(h[eo]ld)[ _-]out(?![a-z])")
_SETS, _TRAIN = HELD_OUT_SETS, TRAINING_SETS
_TOTAL = frozenset({"total", "tot", "overall", "sum"})
_AVERAGE = frozenset({"avg", "average", "averaged", "mean"})
_MEAN = _set(
    "mean avg average averaged running moving rolling smoothed last past recent moyen moyenne media "
    "medio promedio durchschnittlicher durchschnittliche mittlerer mittlere"
)
_OVER_SOME = re.compile(r"\((?:\D*\b(?:last|past|over|of|avg|mean|window)\b)?[^()]*\d\d[^()]*\)")
"""A bracket that says over how many a mean is taken: `(100 ep)`, `(last 20)`."""
_OVER = frozenset({"over", "of", "the", "in", "per", "for", "window", "all", "raw"})
_EPISODE = _set(
    "episode episodes episodic ep eps game games rollout rollouts cumulative cum "
    "discounted undiscounted env environment agent batch"
)
_LOSS = frozenset({"loss", "losses"})
_L = frozenset({"l"})
"""A loss in one letter, where a set of data stands beside it: `L_train`."""
_REWARD = frozenset({"reward", "rewards", "return", "returns", "rew"})
_SCORE = frozenset({"score", "scores"})
_LENGTH = frozenset({"length", "lengths", "len"})
_OF_REWARD = _MEAN | _OVER | _EPISODE | _TOTAL | _TRAIN
_GENERATOR = frozenset({"g", "gen", "generator"})
_DISCRIMINATOR = frozenset({"d", "dis", "disc", "discriminator"})
_LR = (frozenset({"lr"}), frozenset({"learning", "rate"}))
_PARTS_OF_A_MODEL = _set(
    "actor adapter adapters backbone body classifier critic decoder embed embedding embeddings encoder head "
    "heads lora neck stem tower trunk unet"
)
_OF_A_NET = _GENERATOR | _DISCRIMINATOR | _PARTS_OF_A_MODEL | {"current"}
_ACCURACY = frozenset({"acc", "accuracy", "accs", "accuracies"})
_METRICS = _ACCURACY | _set(
    "f iou miou map dice dsc jaccard auc auroc aupr auprc prauc precision prec recall bleu "
    "rouge meteor cider psnr ssim mcc kappa ndcg mrr hit hits hr sensitivity specificity cindex concordance"
)
"""Scores that are better when higher, and mean little without the set that they are of."""
_AT_TOP = re.compile(r"\btop ?\d|\bc index\b")
_RANKING = re.compile(
    r"(?:mean |avg )?(?:precision|recall|rec|ndcg|map|mrr|hits?|hit ratio|hit rate|hr) ?@ ?(?:\d+|k)"
)
"""What a ranking is worth among its first k: held-out data alone is ranked. `prec@1` is what
classifiers call their accuracy."""
_OF_SET = re.compile(rf"(?:{'|'.join(sorted(_SETS))})[ /]")
_OF_A_METRIC = _MEAN | _set(
    "macro micro weighted balanced overall epoch score scores coefficient coef coeff index "
    "top k at ratio binary categorical sparse multiclass instance student pixel node graph c"
)
_OF_MASKS = frozenset({"mlm", "masked", "nsp", "sop"})
"""Tasks that an encoder of text is trained on."""
_OF_NO_OUTPUT = _set(
    "best max min std var loss losses error err time threshold count num lr rate step "
    "steps diff delta target last prev aux ema per no patience gap worst lowest "
    "highest final"
)
"""Words that the name of a model's output does not have, and another quantity does."""


_IN_BARS = re.compile(
    r"(?<![\w|\u2016\u2225])(?:\|\|?|[\u2016\u2225])"
    r"(?:(?P<grad>g|grads?|gradients?|\u2207\w?)|w|weights?|params?|\u03b8|theta)"
    r"(?:\|\|?|[\u2016\u2225])(?:_?[2\u2082])?(?![\w|])",
    re.IGNORECASE,
)
"""`|g|`, `||grad||_2`, `\u2016w\u2016`: the norm of what stands between the bars."""


def name_norms(text: str) -> str:
    """Return a text in which what stands between the bars of a norm is called one.

    Example:
        >>> name_norms("nll 2.5 |g| 1.3"), name_norms("||w||_2"), name_norms("| g | 0.5")
        ('nll 2.5 grad norm 1.3', 'weight norm', '| g | 0.5')
    """
    if "|" not in text and "\u2016" not in text and "\u2225" not in text:
        return text
    return _IN_BARS.sub(lambda m: "grad norm" if m["grad"] else "weight norm", text)


def join_held_out(text: str) -> str:
    """Return a text in lower case with held-out as one word, as `HELD_OUT_SETS` has it.

    Example:
        >>> join_held_out("held-out loss"), join_held_out("Hold_Out_loss")
        ('heldout loss', 'holdout_loss')
    """
    text = text.lower()
    return _HELD_OUT.sub(r"\1out", text) if "ld" in text else text


def _words_of(text: str) -> list[str]:
    return [w for w in re.split(r"[^a-z]+", text) if w] if len(text) <= _MOST_CHARS else []


def said_by_words(text: str) -> str | None:
    """Return the canonical name that the words of a normalised key say, None where they do not.

    Example:
        >>> [said_by_words(k) for k in ("mean 100 episode reward", "train loss total", "lr d")]
        ['reward', 'loss', 'lr']
        >>> said_by_words("val out caps acc"), said_by_words("max 100 episode reward")
        ('eval_score', None)
    """
    words = _words_of(text)
    if not 1 <= len(words) <= _MOST_WORDS or text.endswith("@"):
        return None  # of `pass@` the number behind it is a part
    named = frozenset(words)
    plain = named - _SETS
    if plain & _REWARD:
        return _reward(text, named)
    if "ema" in named and named & _SETS and plain - {"ema"} <= _LOSS | LOSS_FUNCTIONS != plain:
        return "ema_loss" if plain - {"ema"} else None
    if plain & _LOSS or (plain - _TRAIN == _L and named != _L):
        return _loss(named - _L)
    if any(lr <= plain and plain - lr <= _OF_A_NET | _TRAIN for lr in _LR):
        return "lr" if plain == named else None
    return _metric(text, words)


def _reward(text: str, named: frozenset[str]) -> str | None:
    of_set = named & _SETS
    if not named - _SETS - _REWARD <= _OF_REWARD or _is_numbered(text, named):
        return None
    return "eval_score" if of_set else "reward"


def is_mean_score(text: str) -> bool:
    """Whether a normalised key is a mean or a sum of an agent's score, or of one agent's reward.

    A score may be of any kind, and of the words beside a reward nobody knows what they say: both
    need an episode beside them.

    Example:
        >>> [is_mean_score(k) for k in ("score (mean of 100)", "total prey reward", "max score")]
        [True, True, False]
    """
    named = frozenset(_words_of(text))
    if _is_numbered(text, named) or named & _SETS:
        return False
    if named & _SCORE and named - _SCORE <= _OF_REWARD:
        return True
    unknown = named - _REWARD - _OF_REWARD
    is_mean = named & (_MEAN | _TOTAL) or _OVER_SOME.search(text)
    return bool(named & _REWARD and is_mean and len(unknown) == 1) and unknown.isdisjoint(
        _OF_NO_REWARD
    )


def is_length(text: str) -> bool:
    """Whether a normalised key is a length, or a mean of some, such as of an agent's episodes.

    Example:
        >>> [is_length(k) for k in ("last length", "average length", "sequence length")]
        [True, True, False]
    """
    named = frozenset(_words_of(text))
    return bool(named & _LENGTH) and named - _LENGTH <= _MEAN | _OVER | _EPISODE


_SETTINGS = _set(
    "alpha amp augment augmentation augmentations beta bits coef coeff coefficient crop curriculum cutmix "
    "difficulty discount drop dropout droppath droprate eps epsilon forcing frames frozen gamma horizon image img "
    "jitter lam lambda ls margin mask masked masking mix mixing mixture mixup neg negatives negs noise "
    "objective patch phase prob probability quant quantized ratio res resize resolution sampling schedule smooth "
    "smoothing stage swa tau temperature trainable unfrozen unroll views weight weighting weights"
)
_WEIGHTS = _set("coef coeff coefficient weight beta")
_OF_NO_SETTING = HELD_OUT_SETS | _set(
    "acc accuracy alarm alarms anomalies attempt attempts bad batches buffer cache checkpoint ckpt "
    "clipped corrupt cpu crash crashes dead dropped effective episode episodes epoch epochs error "
    "errors eta fail failed failures fan free gpu gpus grad gradient gradients inf iter iteration "
    "iterations iters lost lr mean mem memory min nan nans nodes non nonfinite norm norms oom overflow "
    "overflows preempted preemptions queue ranks reset resets restart restarts resume resumes retries "
    "retry rollback rollbacks run runs sample samples scale skip skipped speed spikes stalls step "
    "steps throughput time tokens update updates util value var workers world"
)
"""What is measured or counted: a restart that is counted is none that the loss is made with."""


def is_setting(text: str) -> bool:
    """Whether a normalised key may be a setting that the loss is made with, and no known signal.

    A word says so (`weight`, `smoothing`, `size`), and none says that it is measured; a name with a
    number in it is that of a layer. Whether it is held and changed as settings are, only its values
    tell.

    Example:
        >>> [is_setting(k) for k in ("label smoothing", "lambda kl", "weight norm", "nan ratio")]
        [True, True, False, False]
    """
    words = _words_of(text)
    if len(words) > _MOST_WORDS_OF_SETTING or any(c.isdigit() for c in text):
        return False
    # The probability of something, and the weight of a term whatever that is.
    says = not _SETTINGS.isdisjoint(words) or (words[:1] == ["p"] and "loss" not in words)
    of_term = words[-1:] != [] and words[-1] in _WEIGHTS
    measured = _OF_NO_SETTING | (frozenset() if of_term else {"entropy"})
    return says and measured.isdisjoint(words)


_OF_NO_REWARD = _OF_NO_OUTPUT | _set(
    "kl penalty chosen rejected margin margins bonus intrinsic format length entropy "
    "normalized negative positive baseline random fn"
)


def _is_numbered(text: str, named: frozenset[str]) -> bool:
    """Whether a number says which of several it is, and not over how many a mean is taken."""
    if named & _MEAN or not any(c.isdigit() for c in text):
        return False
    return any(c.isdigit() for c in _OVER_SOME.sub("", text))


def _loss(named: frozenset[str]) -> str | None:
    of_loss = named - _LOSS
    if of_loss & _SETS:
        return "val_loss" if of_loss <= _SETS | _TOTAL | _AVERAGE else None
    # An average that does not say of what may be of a test set that a line names before it.
    if of_loss <= _TRAIN | _TOTAL or (of_loss & _TRAIN and of_loss <= _TRAIN | _TOTAL | _AVERAGE):
        return "loss"
    net = of_loss - _TRAIN - _TOTAL - {"avg", "average"}
    if len(net) == 1:
        if net <= _GENERATOR:
            return "generator_loss"
        if net <= _DISCRIMINATOR:
            return "discriminator_loss"
    return None


def _domain(words: list[str]) -> frozenset[str]:
    """Return the word for one of two domains in front of a set: `target_val_acc`, no goal."""
    two = words[0] in ("source", "target") and words[1:2] and words[1] in _SETS | _TRAIN
    return frozenset(words[:1] if two else ())


def _metric(text: str, words: list[str]) -> str | None:
    named = frozenset(words)
    named -= _domain(words)
    of_set = _OF_SET.match(text)
    if _RANKING.fullmatch(text, 0 if of_set is None else of_set.end()):
        return "eval_score"
    of_metric = named - _METRICS
    is_known = of_metric != named or _AT_TOP.search(text) is not None
    if not is_known or ("f" in named and not re.search(r"\bf1", text)):
        return None
    if not named & _SETS:
        known = named & _ACCURACY and of_metric <= _OF_A_METRIC | _TRAIN | _OF_MASKS
        return "accuracy" if known and not _is_numbered(text, named) else None
    # Keras puts the name of the output between: `val_mask_iou`. Elsewhere it may be a set's.
    of_output = text.startswith("val ") and of_metric.isdisjoint(_OF_NO_OUTPUT)
    return "eval_score" if of_output or of_metric <= _OF_A_METRIC | _SETS else None

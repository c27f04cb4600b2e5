"""A measure beside the training loss: the same few batches in eval mode, again and again."""

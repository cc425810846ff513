"""One parser for each model family; the decoder that serves them all knows none of them."""

"""Back end of the training model, for models that no other back end runs."""

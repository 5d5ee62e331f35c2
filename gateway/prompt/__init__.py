"""Messages to a model's own prompt: template, tokenizer and stop tokens read from its files. No clock, no network."""

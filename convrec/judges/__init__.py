"""Judge models: columns, prompt, verdict, metrics."""

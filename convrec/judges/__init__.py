"""Judge models: data, prompt, verdict, reward, metrics and training."""

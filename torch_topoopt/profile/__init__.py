"""From a model or a training script to what it computes and communicates, and what that costs."""

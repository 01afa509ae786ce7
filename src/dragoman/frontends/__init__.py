"""What a model reads before its encoder: sound files as samples and features, and the interface of front ends. No PyTorch."""

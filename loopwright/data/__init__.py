"""Data: algorithmic tasks, text and chats as batches that can be resumed from any place."""

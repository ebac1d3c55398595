"""The protocol between clients and peers: messages, frames, connections, authentication."""

"""What peers say to each other: messages, frames, connections, authentication."""

"""What operators do, on Arrow tables: pure functions of state, inputs and watermarks. Single-threaded, vectorised."""

//! The `wrend` program.

fn main() {}

//! The `wrenctl` program.

fn main() {}

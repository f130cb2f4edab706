//! What only a store in a file has.

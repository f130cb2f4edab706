//! The composition root: puts the rooms together, serves, and drains.

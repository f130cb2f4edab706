//! A reader that stops when its call is cancelled: a large file must not outlive the run that asked for it.

use std::io::{self, Read};

use tokio_util::sync::CancellationToken;

use super::Failure;

/// Reads as its inner reader does, until the token fires.
pub struct Watched<'a, R> {
    inner: R,
    token: &'a CancellationToken,
}

impl<'a, R: Read> Watched<'a, R> {
    /// Puts the token in front of every read.
    pub fn new(inner: R, token: &'a CancellationToken) -> Self {
        Self { inner, token }
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.token.is_cancelled() {
            // Not `Interrupted`, which readers take for a reason to try again.
            return Err(io::Error::other("cancelled"));
        }
        self.inner.read(buffer)
    }
}

/// What a cancelled call answers.
pub fn cancelled() -> Failure {
    Failure("cancelled".to_owned())
}

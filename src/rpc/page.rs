//! Page sizes and page tokens. A token is bound to the request that it continues, so that it cannot be used for another.

use sha2::{Digest, Sha256};
use tonic::Status;

use super::error;

const SIZE_MAX: i32 = 1000;
const SEAL_CHARS: usize = 16;

/// Returns the page size: `default` for 0, and no more than 1000.
///
/// # Errors
/// A negative size.
pub fn size(asked: i32, default: usize) -> Result<usize, Status> {
    match usize::try_from(asked.min(SIZE_MAX)) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size),
        Err(_) => Err(error::field("FIELD_INVALID", "page_size", format!("is {asked}; give 1 to {SIZE_MAX}, or 0 for {default}"))),
    }
}

/// Returns the token of the page that begins at `cursor` of what `request` asks for.
pub fn token(cursor: u64, request: &str) -> String {
    format!("{}{cursor:x}", seal(cursor, request))
}

/// Returns the cursor of a token; `None` for the first page.
///
/// # Errors
/// A token that was not given out for this request.
pub fn cursor(token: &str, request: &str) -> Result<Option<u64>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let cursor = token.get(SEAL_CHARS..).and_then(|text| u64::from_str_radix(text, 16).ok());
    match cursor {
        Some(cursor) if token.get(..SEAL_CHARS) == Some(seal(cursor, request).as_str()) => Ok(Some(cursor)),
        _ => Err(error::field(
            "PAGE_TOKEN_INVALID",
            "page_token",
            "belongs to another request; use next_page_token with the same filter and run, or begin again without it",
        )),
    }
}

fn seal(cursor: u64, request: &str) -> String {
    let digest = Sha256::digest(format!("{cursor}\n{request}"));
    digest.iter().take(SEAL_CHARS / 2).map(|byte| format!("{byte:02x}")).collect()
}

//! Ids of traces and spans, derived from what they stand for: a replay cannot fork or double a span, and nobody has to
//! remember an id over a crash.

use sha2::{Digest, Sha256};

use crate::kernel::RunId;

/// Returns the id of a tree's `group`-th trace: 32 hex digits.
pub fn trace_id(root: &RunId, group: u32) -> String {
    hash(&["wren/trace", root.as_str(), &group.to_string()], 16)
}

/// Returns the ids of the trace and span of a tree's submission, which is a short trace of its own unless the submitter
/// has one.
pub fn submission(root: &RunId) -> (String, String) {
    (hash(&["wren/submission", root.as_str()], 16), span_id(root, 0, "rpc", 0, "", 0))
}

/// Returns the id of a span: 16 hex digits.
pub fn span_id(run: &RunId, segment: u32, kind: &str, turn: u32, call: &str, attempt: u32) -> String {
    hash(&["wren/span", run.as_str(), &segment.to_string(), kind, &turn.to_string(), call, &attempt.to_string()], 8)
}

fn hash(parts: &[&str], bytes: usize) -> String {
    let mut text = parts.join("\0");
    loop {
        let digest = Sha256::digest(text.as_bytes());
        let id: String = digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect();
        // All zeros means "no id"; it will not happen, and must not.
        if id.bytes().any(|byte| byte != b'0') {
            return id;
        }
        text.push('\0');
    }
}

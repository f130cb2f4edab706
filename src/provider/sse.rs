//! Bytes to server-sent events, piece by piece and within bounds. It follows the event stream format of the HTML standard;
//! what an event means is the adapter's business.

use std::collections::VecDeque;

/// Bytes of one line at most.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one event's data at most.
const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data, lines joined by LF.
    pub data: String,
}

/// The stream cannot be read: it has a line or an event without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Takes bytes and gives events.
#[derive(Default)]
pub struct SseReader {
    line: Vec<u8>,
    /// Whether the last byte was a CR, whose LF may follow in the next piece.
    after_cr: bool,
    begun: bool,
    name: String,
    data: Option<String>,
    ready: VecDeque<SseEvent>,
}

impl SseReader {
    /// Takes the next bytes, cut wherever the network cut them.
    ///
    /// # Errors
    /// [`TooLong`], after which the reader must not be used.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        for &byte in bytes {
            let lf_of_crlf = self.after_cr && byte == b'\n';
            self.after_cr = byte == b'\r';
            if lf_of_crlf {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                self.end_line()?;
            } else {
                if self.line.len() >= LINE_BYTES_MAX {
                    return Err(TooLong);
                }
                self.line.push(byte);
            }
        }
        Ok(())
    }

    /// Takes the next event that is complete.
    pub fn next(&mut self) -> Option<SseEvent> {
        self.ready.pop_front()
    }

    /// Ends the stream: some servers leave out the blank line after their last event.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn finish(&mut self) -> Result<(), TooLong> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.dispatch();
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), TooLong> {
        let mut bytes = std::mem::take(&mut self.line);
        if !self.begun {
            self.begun = true;
            // Exactly one byte order mark is dropped, at the very start alone.
            if bytes.starts_with(&[0xEF, 0xBB, 0xBF]) {
                bytes.drain(..3);
            }
        }
        if bytes.is_empty() {
            self.dispatch();
            return Ok(());
        }
        let line = String::from_utf8_lossy(&bytes);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                let data = self.data.get_or_insert_default();
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
                if data.len() > EVENT_BYTES_MAX {
                    return Err(TooLong);
                }
            }
            "event" => value.clone_into(&mut self.name),
            // Comments (an empty field), ids and retry times say nothing to us.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self) {
        let name = std::mem::take(&mut self.name);
        if let Some(data) = self.data.take() {
            self.ready.push_back(SseEvent { name, data });
        }
    }
}

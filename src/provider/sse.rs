//! Server-sent events out of bytes, whatever way they were cut. It knows nothing of what the events mean and does no IO.
//!
//! Lines end with LF, CRLF or CR, also where CR and LF arrive in different reads. Memory is bounded: a line or an event
//! that grows past its bound is an error, since nothing a provider means to send is that large.

use std::mem::take;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest event, in bytes of data.
pub const EVENT_BYTES_MAX: usize = 4 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its data lines, joined by LF. Bytes, since only a whole event is sure to be whole characters.
    pub data: Vec<u8>,
    /// Whether it is no event at all but a JSON object that stands between them, as some servers put an error there.
    pub is_bare: bool,
}

/// Why a stream can no longer be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// A line has no end within [`LINE_BYTES_MAX`].
    #[error("a line of the stream is longer than {LINE_BYTES_MAX} bytes")]
    Line,
    /// An event has no end within [`EVENT_BYTES_MAX`].
    #[error("an event of the stream is longer than {EVENT_BYTES_MAX} bytes")]
    Event,
}

/// Takes bytes and gives events.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    // The last byte was CR: an LF that comes next belongs to the same line end.
    after_cr: bool,
    past_first_line: bool,
}

impl Parser {
    /// Takes the next bytes; whole events are added to `events`.
    ///
    /// # Errors
    /// A line or event without end. Nothing more can be read after it.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        let mut rest = bytes;
        if rest.is_empty() {
            // An empty read between a CR and its LF must not part them.
            return Ok(());
        }
        if take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&rest[..end])?;
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_cr && rest.first() == Some(&b'\n') {
                rest = &rest[1..];
            } else {
                self.after_cr = is_cr && rest.is_empty();
            }
            self.end_line(events)?;
        }
        self.extend(rest)
    }

    /// Gives what stands at the end of the stream without the blank line that should end it. It may have been cut.
    pub fn finish(&mut self) -> Option<Event> {
        if !self.line.is_empty() {
            let mut events = Vec::new();
            self.end_line(&mut events).ok()?;
        }
        take(&mut self.has_data).then(|| take(&mut self.event))
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + bytes.len() > LINE_BYTES_MAX {
            return Err(TooLong::Line);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn extend_data(&mut self, more: &[u8]) -> Result<(), TooLong> {
        if self.event.data.len() + more.len() >= EVENT_BYTES_MAX {
            return Err(TooLong::Event);
        }
        if self.has_data {
            self.event.data.push(b'\n');
        }
        self.has_data = true;
        self.event.data.extend_from_slice(more);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) -> Result<(), TooLong> {
        let line = take(&mut self.line);
        let mut text = line.as_slice();
        if !self.past_first_line {
            self.past_first_line = true;
            text = text.strip_prefix(BOM).unwrap_or(text);
        }
        if text.is_empty() {
            // An event without data (a name or an id and then nothing, as around keep-alives) is none.
            let event = take(&mut self.event);
            if take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        if self.event.is_bare || (!self.has_data && text.starts_with(b"{")) {
            self.event.is_bare = true;
            return self.extend_data(text);
        }
        let (field, value) = match text.iter().position(|byte| *byte == b':') {
            Some(colon) => (&text[..colon], &text[colon + 1..]),
            None => (text, &text[text.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.extend_data(value)?,
            b"event" => self.event.name = Some(String::from_utf8_lossy(value).into_owned()),
            // Comments (no name before the colon), ids, retry times and what is unknown.
            _ => {}
        }
        Ok(())
    }
}

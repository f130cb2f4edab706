//! The first look at a document, before anything is built from it: bounds, the YAML that is refused, and where every
//! value stands. A hostile document is refused here, in time linear to its length.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// Bytes of one file at most.
pub const FILE_BYTES_MAX: usize = 256 * 1024;
/// Levels of nesting at most.
const DEPTH_MAX: usize = 64;
/// Values at most, aliases counted as what they stand for.
const NODES_MAX: usize = 20_000;
/// Aliases at most.
const ALIASES_MAX: usize = 100;
/// Double keys that are named.
const DUPLICATES_MAX: usize = 100;
/// Bytes of text at most, aliases counted as what they stand for.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Where something stands, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The first line.
    pub line: u32,
    /// The first column, in characters.
    pub column: u32,
    /// The last line.
    pub end_line: u32,
    /// The column after the last.
    pub end_column: u32,
}

/// A value's places and, for a scalar, its source text.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The key that it stands under, if it stands in a mapping.
    pub key: Option<Place>,
    /// The value.
    pub value: Place,
    /// The scalar as written.
    pub text: Option<String>,
}

/// What is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its code.
    pub code: &'static str,
    /// What.
    pub message: String,
    /// What to do instead; may be empty.
    pub help: String,
    /// Where.
    pub place: Place,
}

/// Every value of a document by JSON pointer.
pub type SourceMap = HashMap<String, Node>;

#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    text_bytes: usize,
}

enum Frame {
    Sequence { pointer: String, index: usize, anchor: usize, size: Size },
    Mapping { pointer: String, keys: HashSet<String>, key: Option<(String, Place)>, anchor: usize, size: Size },
}

#[derive(Default)]
struct Scan {
    map: SourceMap,
    frames: Vec<Frame>,
    /// What each anchor stands for, once it is complete.
    anchors: HashMap<usize, Size>,
    /// Texts of anchored scalars.
    texts: HashMap<usize, String>,
    total: Size,
    aliases: usize,
    documents: usize,
    refused: Vec<Refused>,
}

/// Looks a document over.
///
/// # Errors
/// Everything that is refused; at least one.
pub fn scan(text: &str) -> Result<SourceMap, Vec<Refused>> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes and may have {FILE_BYTES_MAX}", text.len());
        return Err(vec![Refused {
            code: "W001",
            message,
            help: String::new(),
            place: Place { line: 1, column: 1, end_line: 1, end_column: 2 },
        }]);
    }
    let mut scan = Scan::default();
    for event in Parser::new_from_str(text) {
        let step = match event {
            Ok((event, span)) => scan.event(&event, span),
            Err(error) => {
                let marker = error.marker();
                let place = Place {
                    line: number(marker.line()),
                    column: number(marker.col()) + 1,
                    end_line: number(marker.line()),
                    end_column: number(marker.col()) + 2,
                };
                // The parser has a limit of its own, which it reaches while it looks ahead.
                if error.info().contains("recursion limit") {
                    Err(refuse("W007", format!("nested deeper than {DEPTH_MAX} levels"), "", place))
                } else {
                    Err(refuse("W002", format!("this is not valid YAML: {}", error.info()), hint_of(error.info()), place))
                }
            }
        };
        if let Err(refused) = step {
            scan.refused.push(refused);
            break;
        }
    }
    if scan.refused.is_empty() { Ok(scan.map) } else { Err(scan.refused) }
}

/// Returns whether a plain scalar is read as a string, and not as a number, true, false or nothing.
fn is_text(text: &str) -> bool {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL" | "true" | "True" | "TRUE" | "false" | "False" | "FALSE") {
        return false;
    }
    // Whatever the reader of the document takes for a number begins so; the reader itself decides.
    let may_be_number = text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'));
    !may_be_number || serde_yaml::from_str::<serde_yaml::Value>(text).is_ok_and(|value| value.is_string())
}

fn hint_of(info: &str) -> &'static str {
    if info.contains("tab") { "indent with spaces, not with tabs" } else { "" }
}

fn refuse(code: &'static str, message: impl Into<String>, help: impl Into<String>, place: Place) -> Refused {
    Refused { code, message: message.into(), help: help.into(), place }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn place(span: Span) -> Place {
    Place {
        line: number(span.start.line()),
        column: number(span.start.col()) + 1,
        end_line: number(span.end.line()),
        end_column: number(span.end.col()) + 1,
    }
}

/// Returns a pointer with one more part.
pub fn join(pointer: &str, part: &str) -> String {
    format!("{pointer}/{}", part.replace('~', "~0").replace('/', "~1"))
}

impl Scan {
    fn event(&mut self, event: &Event<'_>, span: Span) -> Result<(), Refused> {
        let at = place(span);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(refuse("W003", "a second document begins here", "one file holds one workflow", at));
                }
                Ok(())
            }
            Event::Alias(anchor) => self.alias(*anchor, at),
            Event::Scalar(text, style, anchor, tag) => self.scalar(text, *style, *anchor, tag.is_some(), at),
            Event::SequenceStart(anchor, tag) => {
                let pointer = self.begin(tag.is_some(), at, "a list")?;
                self.frames.push(Frame::Sequence { pointer, index: 0, anchor: *anchor, size: Size::default() });
                Ok(())
            }
            Event::MappingStart(anchor, tag) => {
                let pointer = self.begin(tag.is_some(), at, "a mapping")?;
                self.frames.push(Frame::Mapping { pointer, keys: HashSet::new(), key: None, anchor: *anchor, size: Size::default() });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.end();
                Ok(())
            }
        }
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), Refused> {
        self.aliases += 1;
        if self.aliases > ALIASES_MAX {
            return Err(refuse("W004", format!("more than {ALIASES_MAX} aliases"), "", at));
        }
        let Some(size) = self.anchors.get(&anchor).copied() else {
            return Err(refuse("W004", "an alias stands inside what it stands for", "", at));
        };
        // The text as it was written is kept for aliases too: an amount is read from it exactly.
        let text = self.texts.get(&anchor).cloned();
        self.take_place(at, text.as_deref())?;
        self.add(size, at)
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, anchor: usize, tagged: bool, at: Place) -> Result<(), Refused> {
        if tagged {
            return Err(refuse("W005", "tags are not allowed", "write the value without `!…`", at));
        }
        if text.contains('\0') {
            return Err(refuse("W002", "a NUL character", "", at));
        }
        let plain = style == ScalarStyle::Plain;
        let size = Size { nodes: 1, text_bytes: text.len() };
        if anchor > 0 {
            self.anchors.insert(anchor, size);
            self.texts.insert(anchor, text.to_owned());
        }
        if self.expects_key() {
            return self.key(text, plain, at);
        }
        self.take_place(at, Some(text))?;
        self.add(size, at)
    }

    fn expects_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame::Mapping { key: None, .. }))
    }

    fn key(&mut self, text: &str, plain: bool, at: Place) -> Result<(), Refused> {
        if plain && text == "<<" {
            return Err(refuse(
                "W005",
                "merge keys (`<<`) are not allowed",
                "write the fields out, or use an alias for the whole value",
                at,
            ));
        }
        if plain && !is_text(text) {
            return Err(refuse("W005", format!("the key `{text}` is not a string"), format!("quote it: \"{text}\""), at));
        }
        if let Some(Frame::Mapping { keys, key, .. }) = self.frames.last_mut() {
            if !keys.insert(text.to_owned()) {
                // The others are of interest too: one slip of an editor can double many keys.
                if self.refused.len() < DUPLICATES_MAX {
                    self.refused.push(refuse("W006", format!("the key `{text}` is given twice"), "remove one of the two", at));
                }
            }
            *key = Some((text.to_owned(), at));
        }
        Ok(())
    }

    /// Opens a collection: returns its pointer.
    fn begin(&mut self, tagged: bool, at: Place, what: &str) -> Result<String, Refused> {
        if tagged {
            return Err(refuse("W005", "tags are not allowed", "write the value without `!…`", at));
        }
        if self.expects_key() {
            let help = "quote the template: \"{{ … }}\"";
            return Err(refuse("W005", format!("{what} cannot be a key"), help, at));
        }
        if self.frames.len() >= DEPTH_MAX {
            return Err(refuse("W007", format!("nested deeper than {DEPTH_MAX} levels"), "", at));
        }
        let pointer = self.take_place(at, None)?;
        self.total.nodes += 1;
        if self.total.nodes > NODES_MAX {
            return Err(refuse("W004", format!("more than {NODES_MAX} nodes after expansion"), "", at));
        }
        Ok(pointer)
    }

    /// Notes where the next value of the innermost collection stands.
    fn take_place(&mut self, at: Place, text: Option<&str>) -> Result<String, Refused> {
        let (pointer, key) = match self.frames.last_mut() {
            None => (String::new(), None),
            Some(Frame::Sequence { pointer, index, .. }) => {
                *index += 1;
                (join(pointer, &(*index - 1).to_string()), None)
            }
            Some(Frame::Mapping { pointer, key, .. }) => {
                let Some((name, key_at)) = key.take() else {
                    return Err(refuse("W005", "an alias cannot be a key", "write the key out", at));
                };
                (join(pointer, &name), Some(key_at))
            }
        };
        self.map.insert(pointer.clone(), Node { key, value: at, text: text.map(str::to_owned) });
        Ok(pointer)
    }

    fn add(&mut self, more: Size, at: Place) -> Result<(), Refused> {
        self.total.nodes += more.nodes;
        self.total.text_bytes += more.text_bytes;
        if let Some(Frame::Sequence { size, .. } | Frame::Mapping { size, .. }) = self.frames.last_mut() {
            size.nodes += more.nodes;
            size.text_bytes += more.text_bytes;
        }
        if self.total.nodes > NODES_MAX {
            return Err(refuse("W004", format!("more than {NODES_MAX} nodes after expansion"), "use fewer aliases", at));
        }
        if self.total.text_bytes > TEXT_BYTES_MAX {
            return Err(refuse("W004", format!("more than {TEXT_BYTES_MAX} bytes of text after expansion"), "use fewer aliases", at));
        }
        Ok(())
    }

    fn end(&mut self) {
        let (anchor, size) = match self.frames.pop() {
            Some(Frame::Sequence { anchor, size, .. } | Frame::Mapping { anchor, size, .. }) => (anchor, size),
            None => return,
        };
        let size = Size { nodes: size.nodes + 1, text_bytes: size.text_bytes };
        if anchor > 0 {
            self.anchors.insert(anchor, size);
        }
        if let Some(Frame::Sequence { size: above, .. } | Frame::Mapping { size: above, .. }) = self.frames.last_mut() {
            above.nodes += size.nodes;
            above.text_bytes += size.text_bytes;
        }
    }
}

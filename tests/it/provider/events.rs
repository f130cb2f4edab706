//! Server-sent events: line ends, comments, data lines, characters and bounds.

use proptest::prelude::*;
use wren::provider::sse::{EVENT_BYTES_MAX, Event, LINE_BYTES_MAX, Parser, TooLong};

fn event(name: Option<&str>, data: &str) -> Event {
    Event { name: name.map(str::to_owned), data: data.as_bytes().to_vec(), is_bare: false }
}

fn parse(pieces: &[&[u8]]) -> Vec<Event> {
    let mut parser = Parser::default();
    let mut events = Vec::new();
    for piece in pieces {
        parser.feed(piece, &mut events).unwrap();
    }
    events.extend(parser.finish());
    events
}

fn one_by_one(text: &str) -> Vec<Event> {
    parse(&text.as_bytes().chunks(1).collect::<Vec<_>>())
}

#[test]
fn every_line_end_gives_the_same_events_as_soon_as_their_blank_line_is_there() {
    let right = vec![event(None, "one"), event(None, "two"), event(None, "three")];
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("data: one{end}{end}data: two{end}{end}data: three{end}{end}");
        assert_eq!(parse(&[text.as_bytes()]), right, "{end:?}");
        assert_eq!(one_by_one(&text), right, "{end:?}");
    }
    let mixed = "data: one\n\r\ndata: two\r\r\ndata: three\r\n\n";
    assert_eq!(parse(&[mixed.as_bytes()]), right);
    assert_eq!(one_by_one(mixed), right);

    let mut parser = Parser::default();
    let mut events = Vec::new();
    parser.feed(b"data: one\r\n\r", &mut events).unwrap();
    assert_eq!(events.len(), 1, "the CR already ends the blank line");
    parser.feed(b"", &mut events).unwrap();
    parser.feed(b"\ndata: two\r\n\r\n", &mut events).unwrap();
    assert_eq!(events.len(), 2, "and the LF after it is part of the same end");
}

#[test]
fn data_lines_are_joined_and_one_space_is_dropped() {
    assert_eq!(parse(&[b"data:{\"a\":1}\n\n"]), [event(None, "{\"a\":1}")]);
    assert_eq!(parse(&[b"data: {\"a\":\ndata: 1}\n\n"]), [event(None, "{\"a\":\n1}")]);
    assert_eq!(parse(&[b"data:  two spaces\n\n"]), [event(None, " two spaces")]);
    assert_eq!(parse(&[b"data: x\nevent: late\n\n"]), [event(Some("late"), "x")]);
    assert_eq!(parse(&[b"event: early\ndata: x\n\n"]), [event(Some("early"), "x")]);
    assert_eq!(parse(&[b"data\n\n"]), [event(None, "")]);
}

#[test]
fn comments_and_names_without_data_give_nothing() {
    let text = format!("{}data: x\n\n: ping\n\n:\n\nid: 7\n\nevent: nothing\n\nretry: 5\n\ndata: y\n\n", ": wait\n\n".repeat(15));
    assert_eq!(parse(&[text.as_bytes()]), [event(None, "x"), event(None, "y")]);
    assert_eq!(one_by_one(&text), [event(None, "x"), event(None, "y")]);
}

#[test]
fn one_byte_order_mark_is_dropped_at_the_very_start_only() {
    let text = "\u{feff}data: a\u{feff}b\n\ndata: 東京 “naïve” 🌍\n\n\u{feff}data: no field\n\n";
    let right = [event(None, "a\u{feff}b"), event(None, "東京 “naïve” 🌍")];
    assert_eq!(parse(&[text.as_bytes()]), right);
    assert_eq!(one_by_one(text), right);
}

#[test]
fn what_lacks_its_last_blank_line_is_given_at_the_end() {
    assert_eq!(parse(&[b"data: x\n\ndata: [DONE]"]), [event(None, "x"), event(None, "[DONE]")]);
    assert_eq!(parse(&[b"data: x\n\ndata: [DONE]\n"]), [event(None, "x"), event(None, "[DONE]")]);
}

#[test]
fn lines_and_events_without_end_are_refused() {
    let mut parser = Parser::default();
    let mut events = Vec::new();
    let piece = vec![b'x'; 1 << 16];
    let fed = (0..3200).find_map(|_| parser.feed(&piece, &mut events).err());
    assert_eq!(fed, Some(TooLong::Line));

    let mut parser = Parser::default();
    let line = format!("data: {}\n", "x".repeat(LINE_BYTES_MAX / 2));
    let fed = (0..EVENT_BYTES_MAX / line.len() + 2).find_map(|_| parser.feed(line.as_bytes(), &mut events).err());
    assert_eq!(fed, Some(TooLong::Event));
    assert!(events.is_empty());
}

proptest! {
    #[test]
    fn cuts_change_nothing(
        lines in proptest::collection::vec(prop_oneof![
            Just(String::new()), Just(": c".to_owned()), "data: ?[a-zé🌍: ]{0,8}", "event: [a-z]{1,4}", "[a-z:]{1,6}",
        ], 0..20),
        ends in proptest::collection::vec(prop_oneof![Just("\n"), Just("\r\n"), Just("\r")], 20),
        cuts in proptest::collection::vec(0.0..1.0f64, 0..12),
    ) {
        let text: String = lines.iter().zip(&ends).map(|(line, end)| format!("{line}{end}")).collect();
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut start = 0;
        let pieces: Vec<&[u8]> = cuts.iter().map(|cut| { let piece = &bytes[start..*cut]; start = *cut; piece }).collect();
        let whole = parse(&[bytes]);
        prop_assert_eq!(&parse(&pieces), &whole);
        prop_assert_eq!(&parse(&bytes.chunks(1).collect::<Vec<_>>()), &whole);
    }
}

//! Server-sent events, split out of pieces of any length.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memchr;

/// Collects pieces until an event is whole.
#[derive(Debug)]
pub struct Events {
    buffer: BytesMut,
    /// Bytes of `buffer` that hold no end of line.
    scanned: usize,
    /// The event's data so far; several `data:` lines are joined by a line feed.
    data: Option<BytesMut>,
    most: usize,
}

/// An event that is longer than an engine's may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {0} bytes")]
pub struct TooLong(pub usize);

impl Events {
    /// Refuses events of more than `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, data: None, most }
    }

    /// More bytes of the stream.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), TooLong> {
        if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) + piece.len() > self.most
        {
            return Err(TooLong(self.most));
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// The data of the next whole event. Events without data (comments) are passed over.
    pub fn next_event(&mut self) -> Option<Bytes> {
        while let Some(at) = memchr(b'\n', &self.buffer[self.scanned..]) {
            let mut line = self.buffer.split_to(self.scanned + at);
            self.buffer.advance(1);
            self.scanned = 0;
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Some(data.freeze());
                }
            } else if line.starts_with(b"data:") {
                line.advance(5);
                if line.first() == Some(&b' ') {
                    line.advance(1);
                }
                match &mut self.data {
                    None => self.data = Some(line),
                    Some(data) => {
                        data.extend_from_slice(b"\n");
                        data.extend_from_slice(&line);
                    }
                }
            }
        }
        self.scanned = self.buffer.len();
        None
    }
}

/// The data as an event.
pub fn event(data: &[u8]) -> Bytes {
    [b"data: ", data, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_do_not_depend_on_pieces(
            events in proptest::collection::vec("[a-z{}: ]{1,20}", 0..8),
            cuts in proptest::collection::vec(1_usize..9, 1..20),
            carriage in any::<bool>(),
        ) {
            let end = if carriage { "\r\n" } else { "\n" };
            let mut text = String::new();
            for data in &events {
                text.extend([": comment", end, end, "data: ", data, end, "id: 7", end, end]);
            }
            let mut splitter = Events::new(1000);
            let mut found = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, further) = rest.split_at((*cut).min(rest.len()));
                rest = further;
                splitter.push(piece).unwrap();
                while let Some(event) = splitter.next_event() {
                    found.push(String::from_utf8(event.to_vec()).unwrap());
                }
            }
            prop_assert_eq!(found, events);
        }
    }

    #[test]
    fn bounds_and_joins() {
        let mut events = Events::new(40);
        events.push(b"data: a\ndata:b\n\ndata: c").unwrap();
        assert_eq!(&events.next_event().unwrap()[..], b"a\nb");
        assert_eq!(events.next_event(), None);
        assert_eq!(events.push(&[b'x'; 40]), Err(TooLong(40)));
        assert_eq!(&event(b"{}")[..], b"data: {}\n\n");
    }
}

//! What is kept of an action's output until it is in the store.

use bytes::BytesMut;
use rollwright_proto::v1 as pb;

/// Pieces below this size are appended to the one before them.
const SMALL: usize = 1 << 10;
/// Largest piece that grows by appending.
const MERGED: usize = 16 << 10;
/// About what a piece takes beside its bytes.
const PIECE: usize = 96;

/// The output of one action, in the order in which the agent sent it.
#[derive(Default)]
pub(super) struct Output {
    pieces: Vec<pb::Output>,
    /// Offset of the next byte.
    next: u64,
    /// By stream: the cut at its end was stated.
    stated: [bool; 3],
    /// By stream: bytes dropped here and not yet stated.
    lost: [u64; 3],
    /// Bytes dropped here, in all.
    dropped: u64,
}

fn index(output: &pb::Output) -> usize {
    output.stream() as usize
}

impl Output {
    pub(super) fn pieces(&self) -> &[pb::Output] {
        &self.pieces
    }

    /// Bytes that were dropped here for want of memory.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What is new of a piece at `offset`: what came before a reconnection comes
    /// again. A piece without data states that the end of its stream was cut.
    pub(super) fn news(&mut self, offset: u64, mut output: pb::Output) -> Option<pb::Output> {
        if output.data.is_empty() {
            let stated = &mut self.stated[index(&output)];
            let news = output.dropped_before > 0 && !std::mem::replace(stated, true);
            return news.then_some(output);
        }
        let end = offset.saturating_add(output.data.len() as u64);
        if end <= self.next {
            return None;
        }
        let known = usize::try_from(self.next.saturating_sub(offset)).ok()?;
        if known > 0 {
            drop(output.data.split_to(known));
            output.dropped_before = 0;
        }
        self.next = end;
        Some(output)
    }

    /// The offset of the next byte.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Drops a piece; the next of its stream states it.
    pub(super) fn lose(&mut self, output: &pb::Output) {
        let bytes = output.data.len() as u64;
        self.lost[index(output)] += bytes + output.dropped_before;
        self.dropped += bytes;
    }

    /// Keeps a piece. Returns it as callers are to see it, and the memory it takes.
    pub(super) fn keep(&mut self, mut output: pb::Output) -> (pb::Output, usize) {
        output.dropped_before += std::mem::take(&mut self.lost[index(&output)]);
        let bytes = output.data.len();
        if let Some(last) = self.pieces.last_mut()
            && output.dropped_before == 0
            && last.stream == output.stream
            && bytes < SMALL
            && last.data.len() + bytes <= MERGED
        {
            // In place, unless a caller still has the piece.
            let mut data = match std::mem::take(&mut last.data).try_into_mut() {
                Ok(data) => data,
                Err(data) => BytesMut::from(data.as_ref()),
            };
            data.extend_from_slice(&output.data);
            last.data = data.freeze();
            return (output, bytes);
        }
        self.pieces.push(output.clone());
        (output, bytes + PIECE)
    }

    /// States what was dropped at the end of a stream.
    pub(super) fn close(&mut self) -> Vec<pb::Output> {
        let streams = [
            pb::output::Stream::Unspecified,
            pb::output::Stream::Stdout,
            pb::output::Stream::Stderr,
        ];
        let mut stated = Vec::new();
        for stream in streams {
            let dropped_before = std::mem::take(&mut self.lost[stream as usize]);
            if dropped_before > 0 {
                let data = bytes::Bytes::new();
                stated.push(pb::Output { stream: stream.into(), data, dropped_before });
            }
        }
        self.pieces.extend(stated.iter().cloned());
        stated
    }

    /// All pieces; nothing is kept.
    pub(super) fn take(&mut self) -> Vec<pb::Output> {
        std::mem::take(&mut self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(data: &'static [u8], dropped_before: u64) -> pb::Output {
        let stream = pb::output::Stream::Stdout.into();
        pb::Output { stream, data: bytes::Bytes::from_static(data), dropped_before }
    }

    #[test]
    fn a_cut_end_is_stated_once() {
        let mut output = Output::default();
        assert!(output.news(0, piece(b"abc", 0)).is_some());
        assert!(output.news(3, piece(b"", 7)).is_some());
        assert!(output.news(0, piece(b"abc", 0)).is_none());
        assert!(output.news(3, piece(b"", 7)).is_none());
        assert!(output.news(3, piece(b"", 0)).is_none());
    }

    #[test]
    fn single_bytes_share_a_piece() {
        let mut output = Output::default();
        let mut charged = 0;
        for offset in 0..100_000 {
            let news = output.news(offset, piece(b"x", 0)).unwrap();
            charged += output.keep(news).1;
        }
        assert!(output.pieces().len() <= 7, "{}", output.pieces().len());
        assert!(charged < 101_000);
        let kept: usize = output.pieces().iter().map(|piece| piece.data.len()).sum();
        assert_eq!(kept, 100_000);
    }

    #[test]
    fn what_is_dropped_is_stated_with_the_next_piece_or_at_the_end() {
        let mut output = Output::default();
        output.lose(&piece(b"abc", 2));
        assert_eq!(output.keep(piece(b"d", 0)).0.dropped_before, 5);
        output.lose(&piece(b"ef", 0));
        assert_eq!(output.close(), [piece(b"", 2)]);
        assert_eq!((output.dropped(), output.close().len()), (5, 0));
    }
}

//! Gathers the many small pieces of a text or a hash stream into whole chunks for whoever consumes them. Private to
//! the crate: the encoder's and the hash's common ground.

/// Bytes handed on at once: a multiple of SHA-256's block, so that a hasher never has to keep a part of one.
const CHUNK: usize = 1024;
/// Longest piece that is gathered whole.
const PIECE: usize = 128;

/// A buffer in front of a consumer of chunks. What is still gathered when it is dropped without
/// [`PieceBuffer::finish`] is lost.
pub(crate) struct PieceBuffer<C> {
    consumer: C,
    buffer: [u8; CHUNK + PIECE + 2],
    /// Less than [`CHUNK`] between two pieces.
    filled: usize,
}

impl<C: FnMut(&[u8])> PieceBuffer<C> {
    pub(crate) fn new(consumer: C) -> PieceBuffer<C> {
        PieceBuffer {
            consumer,
            buffer: [0; CHUNK + PIECE + 2],
            filled: 0,
        }
    }

    /// Hands on what is left.
    pub(crate) fn finish(mut self) {
        (self.consumer)(&self.buffer[..self.filled]);
    }

    #[inline(always)]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.buffer[self.filled] = byte;
        self.advance(1);
    }

    #[inline(always)]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            copy_piece(&mut self.buffer[self.filled..][..piece.len()], piece);
            self.advance(piece.len());
        }
    }

    /// Two bytes, then at most [`PIECE`] more.
    #[inline(always)]
    pub(crate) fn headed(&mut self, head: [u8; 2], piece: &[u8]) {
        let to = &mut self.buffer[self.filled..][..piece.len() + 2];
        to[..2].copy_from_slice(&head);
        copy_piece(&mut to[2..], piece);
        self.advance(piece.len() + 2);
    }

    /// `before`, the bytes, `after`.
    #[inline(always)]
    pub(crate) fn between(&mut self, before: u8, bytes: &[u8], after: u8) {
        if bytes.len() <= PIECE {
            let to = &mut self.buffer[self.filled..][..bytes.len() + 2];
            to[0] = before;
            copy_piece(&mut to[1..=bytes.len()], bytes);
            to[bytes.len() + 1] = after;
            self.advance(bytes.len() + 2);
        } else {
            self.byte(before);
            self.bytes(bytes);
            self.byte(after);
        }
    }

    #[inline(always)]
    fn advance(&mut self, by: usize) {
        self.filled += by;
        if self.filled >= CHUNK {
            self.hand_on();
        }
    }

    #[cold]
    fn hand_on(&mut self) {
        (self.consumer)(&self.buffer[..CHUNK]);
        self.buffer.copy_within(CHUNK..self.filled, 0);
        self.filled -= CHUNK;
    }
}

/// Copies a piece; the short ones, which are nearly all, by two overlapping loads instead of a call.
#[inline(always)]
fn copy_piece(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
        let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
            return false;
        };
        if let Some(to) = to.first_chunk_mut::<N>() {
            *to = *first;
        }
        if let Some(to) = to.last_chunk_mut::<N>() {
            *to = *last;
        }
        true
    }
    if from.len() > 32 {
        to.copy_from_slice(from);
    } else if !(from.len() > 16 && ends::<16>(to, from) || ends::<8>(to, from) || ends::<4>(to, from)) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_lengths_arrive_in_order() {
        let (mut expected, mut gathered) = (Vec::new(), Vec::new());
        let mut buffer = PieceBuffer::new(|chunk: &[u8]| gathered.extend_from_slice(chunk));
        for length in (0..300usize).chain([1023, 1024, 1025, 5000]) {
            let piece: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            buffer.bytes(&piece);
            buffer.between(b'<', &piece, b'>');
            buffer.byte(b'|');
            expected.extend([&piece[..], b"<", &piece, b">|"].concat());
        }
        buffer.finish();
        assert_eq!(gathered, expected);
    }
}

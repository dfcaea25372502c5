/// Masking key of a frame (RFC 6455 §5.3). Its first byte belongs to the next byte of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask(pub [u8; 4]);

impl Mask {
    /// Masks or unmasks the next `bytes` of the payload.
    pub fn apply(&mut self, bytes: &mut [u8]) {
        let [a, b, c, d] = self.0;
        let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for bytes in words {
            *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(word.to_ne_bytes()) {
            *byte ^= mask;
        }
        self.0.rotate_left(bytes.len() % 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_every_length_are_masked_like_the_whole() {
        for first in 0..=33 {
            let mut bytes = vec![0; 64];
            let mut mask = Mask([1, 2, 3, 4]);
            let (head, tail) = bytes.split_at_mut(first);
            mask.apply(head);
            mask.apply(tail);
            assert_eq!(bytes, [1, 2, 3, 4].repeat(16), "{first}");
        }
    }
}

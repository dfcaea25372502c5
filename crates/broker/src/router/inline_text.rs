use std::fmt;

/// A text stored inline if it has at most `N` bytes, so that comparisons follow no pointer.
#[derive(Clone)]
pub(super) enum InlineText<const N: usize> {
    Short { len: u8, bytes: [u8; N] },
    Long(Box<[u8]>),
}

impl<const N: usize> InlineText<N> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl<const N: usize> From<&[u8]> for InlineText<N> {
    fn from(text: &[u8]) -> Self {
        match u8::try_from(text.len()) {
            Ok(len) if text.len() <= N => {
                let mut bytes = [0; N];
                bytes[..text.len()].copy_from_slice(text);
                Self::Short { len, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }
}

impl<const N: usize> fmt::Debug for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_length_is_kept_as_it_is() {
        for len in (0..70).chain([255, 256, 65_535]) {
            let text = (0..len).map(|at| at as u8).collect::<Vec<_>>();
            assert_eq!(InlineText::<22>::from(&text[..]).as_bytes(), text);
            assert_eq!(InlineText::<62>::from(&text[..]).as_bytes(), text);
        }
        assert_eq!([size_of::<InlineText<22>>(), size_of::<InlineText<62>>()], [24, 64]);
    }
}

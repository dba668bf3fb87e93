//! Formats that records and messages are printed by: text, escapes, and letters after `%` that stand for parts.

use super::failure::Failure;

/// A format, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pieces(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    /// `%` and this letter.
    Field(char),
}

impl Pieces {
    /// What one letter stands for, and a new line.
    pub(crate) fn line_of(letter: char) -> Self {
        Self(vec![Piece::Field(letter), Piece::Text(b"\n".into())])
    }

    /// Reads a format string that may have these letters.
    ///
    /// # Errors
    /// If it holds a sequence that does not exist.
    pub(crate) fn parse(text: &str, letters: &str) -> Result<Self, Failure> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '%' => match rest.next() {
                    Some('%') => literal.push(b'%'),
                    Some(letter) if letters.contains(letter) => {
                        if !literal.is_empty() {
                            pieces.push(Piece::Text(std::mem::take(&mut literal)));
                        }
                        pieces.push(Piece::Field(letter));
                    }
                    Some(letter) => return Err(Failure::new(format!("format: there is no %{letter}"))),
                    None => return Err(Failure::new("format: nothing after %")),
                },
                '\\' => literal.push(escape(&mut rest)?),
                _ => literal.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Appends it all; `field` appends what a letter stands for.
    pub(crate) fn fill(&self, out: &mut Vec<u8>, mut field: impl FnMut(&mut Vec<u8>, char)) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Field(letter) => field(out, *letter),
            }
        }
    }
}

/// What follows a `\`.
fn escape(rest: &mut std::str::Chars<'_>) -> Result<u8, Failure> {
    Ok(match rest.next() {
        Some('\\') => b'\\',
        Some('0') => 0,
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('x') => {
            let digits: String = rest.by_ref().take(2).collect();
            let byte = u8::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 2);
            byte.ok_or_else(|| Failure::new("format: \\x takes two digits"))?
        }
        Some(letter) => return Err(Failure::new(format!("format: there is no \\{letter}"))),
        None => return Err(Failure::new("format: nothing after \\")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_refused() {
        for text in ["%", "%q", "\\", "\\q", "\\x4", "\\xzz"] {
            assert!(Pieces::parse(text, "s").is_err(), "{text}");
        }
    }

    #[test]
    fn letters_are_filled_in() {
        let mut out = Vec::new();
        Pieces::parse("%a%%\\x41-%b\\n", "ab").unwrap().fill(&mut out, |out, letter| out.push(letter as u8));
        assert_eq!(out, b"a%A-b\n");
    }
}

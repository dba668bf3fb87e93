//! Format strings of the Kafka and queue tools: text, escapes, and letters after `%` for parts of a record or message.

use super::failure::Failure;

/// A parsed format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormatString(Vec<Token>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Text(Vec<u8>),
    /// `%` and a letter.
    Field(char),
}

impl FormatString {
    /// A single field and a newline.
    pub(crate) fn field_line(letter: char) -> Self {
        Self(vec![Token::Field(letter), Token::Text(b"\n".into())])
    }

    /// Parses a format string with fields from `letters`.
    ///
    /// # Errors
    /// If it has an unknown sequence.
    pub(crate) fn parse(text: &str, letters: &str) -> Result<Self, Failure> {
        let mut tokens = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '%' => match rest.next() {
                    Some('%') => literal.push(b'%'),
                    Some(letter) if letters.contains(letter) => {
                        if !literal.is_empty() {
                            tokens.push(Token::Text(std::mem::take(&mut literal)));
                        }
                        tokens.push(Token::Field(letter));
                    }
                    Some(letter) => return Err(Failure::new(format!("format: there is no %{letter}"))),
                    None => return Err(Failure::new("format: nothing after %")),
                },
                '\\' => literal.push(escape(&mut rest)?),
                _ => literal.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        if !literal.is_empty() {
            tokens.push(Token::Text(literal));
        }
        Ok(Self(tokens))
    }

    /// Appends the formatted text. `field` appends the value of a field.
    pub(crate) fn fill(&self, out: &mut Vec<u8>, mut field: impl FnMut(&mut Vec<u8>, char)) {
        for token in &self.0 {
            match token {
                Token::Text(text) => out.extend_from_slice(text),
                Token::Field(letter) => field(out, *letter),
            }
        }
    }
}

/// Parses what follows a `\`.
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
    fn rejects_unknown_sequences() {
        for text in ["%", "%q", "\\", "\\q", "\\x4", "\\xzz"] {
            assert!(FormatString::parse(text, "s").is_err(), "{text}");
        }
    }

    #[test]
    fn fills_in_fields() {
        let mut out = Vec::new();
        FormatString::parse("%a%%\\x41-%b\\n", "ab")
            .unwrap()
            .fill(&mut out, |out, letter| out.push(letter as u8));
        assert_eq!(out, b"a%A-b\n");
    }
}

//! Output formats of `mainstem sub`: format strings of `-F`, and the predefined formats.

use std::io::Write as _;

use mainstem_mqtt::packet::Publish;

use super::clock::Moment;
use super::failure::Failure;
use super::json::{Payload, object};

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Text(Vec<u8>),
    /// `%` and a letter, with its field width.
    Message(char, Field),
    /// `@` and a letter.
    Time(char),
}

/// Flags, width and precision, as in `%-08.3t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    left: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
}

/// Letters after `%` that support a width.
const FITTED: &str = "ACEFIlmpRStxX";
/// Letters after `%` that do not.
const PLAIN: &str = "dDjJPqrU";
/// Letters after `@`.
const TIMES: &str = "YmdHMSNjFTs";
const WIDTH_MAX: usize = 10_000;

impl Format {
    /// The payload alone.
    pub(crate) fn payload() -> Self {
        Self { tokens: vec![Token::Message('p', Field::default())] }
    }

    /// Topic, a space, the payload.
    pub(crate) fn verbose() -> Self {
        let plain = Field::default();
        Self {
            tokens: vec![Token::Message('t', plain), Token::Text(b" ".into()), Token::Message('p', plain)],
        }
    }

    /// One JSON object.
    pub(crate) fn json() -> Self {
        Self { tokens: vec![Token::Message('j', Field::default())] }
    }

    /// Parses a format string.
    ///
    /// # Errors
    /// If it has an unknown sequence.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut tokens = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            let token = match c {
                '%' => Some(message_token(&mut rest)?),
                '@' => Some(time_token(rest.next())?),
                '\\' => Some(Token::Text(vec![escape(rest.next())?])),
                _ => None,
            };
            match token {
                Some(Token::Text(text)) => literal.extend(text),
                Some(token) => {
                    if !literal.is_empty() {
                        tokens.push(Token::Text(std::mem::take(&mut literal)));
                    }
                    tokens.push(token);
                }
                None => literal.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        if !literal.is_empty() {
            tokens.push(Token::Text(literal));
        }
        Ok(Self { tokens })
    }

    /// Appends a message received at `at`. `topic` is its topic, with a topic alias resolved.
    ///
    /// # Errors
    /// If the format has `%J` and the payload is not JSON. `out` is unchanged then.
    pub(crate) fn append(
        &self,
        out: &mut Vec<u8>,
        publish: &Publish<'_>,
        topic: &str,
        at: &Moment,
    ) -> Result<(), Failure> {
        let before = out.len();
        for token in &self.tokens {
            match token {
                Token::Text(text) => out.extend_from_slice(text),
                Token::Time(letter) => time(out, *letter, at),
                Token::Message(letter, field) => {
                    let start = out.len();
                    if !message(out, *letter, publish, topic, at) {
                        out.truncate(before);
                        return Err(Failure::new(format!("topic {topic}: the payload is not JSON")));
                    }
                    field.fit(out, start);
                }
            }
        }
        Ok(())
    }
}

impl Field {
    /// Pads or truncates the bytes of `out` from `start` on.
    fn fit(&self, out: &mut Vec<u8>, start: usize) {
        if let Some(precision) = self.precision {
            // Truncate between characters.
            let len = std::str::from_utf8(&out[start..]).map_or(precision, |text| {
                text.char_indices().nth(precision).map_or(text.len(), |(at, _)| at)
            });
            out.truncate(start + len);
        }
        let len = std::str::from_utf8(&out[start..]).map_or(out.len() - start, |text| text.chars().count());
        let missing = self.width.saturating_sub(len);
        let padding = std::iter::repeat_n(if self.zeros { b'0' } else { b' ' }, missing);
        if self.left {
            out.extend(padding);
        } else {
            out.splice(start..start, padding);
        }
    }
}

/// Parses what follows a `%`.
fn message_token(rest: &mut std::str::Chars<'_>) -> Result<Token, Failure> {
    let mut field = Field::default();
    let mut c = rest.next();
    while let Some(flag @ ('0' | '-')) = c {
        field.left |= flag == '-';
        field.zeros |= flag == '0';
        c = rest.next();
    }
    field.width = digits(&mut c, rest)?.unwrap_or(0);
    if c == Some('.') {
        c = rest.next();
        field.precision = Some(digits(&mut c, rest)?.unwrap_or(0));
    }
    let letter = c.ok_or_else(|| Failure::new("format: nothing after %"))?;
    // Only numbers are padded with zeros.
    field.zeros &= !field.left && "AEFlmSxX".contains(letter);
    if !"CIRtxXp".contains(letter) {
        field.precision = None;
    }
    match letter {
        '%' => Ok(Token::Text(b"%".into())),
        _ if FITTED.contains(letter) => Ok(Token::Message(letter, field)),
        _ if PLAIN.contains(letter) => Ok(Token::Message(letter, Field::default())),
        _ => Err(Failure::new(format!("format: there is no %{letter}"))),
    }
}

fn digits(c: &mut Option<char>, rest: &mut std::str::Chars<'_>) -> Result<Option<usize>, Failure> {
    let mut value = None;
    while let Some(digit) = c.and_then(|c| c.to_digit(10)) {
        let sum = value.unwrap_or(0) * 10 + digit as usize;
        if sum > WIDTH_MAX {
            return Err(Failure::new(format!("format: a field wider than {WIDTH_MAX}")));
        }
        value = Some(sum);
        *c = rest.next();
    }
    Ok(value)
}

/// Parses what follows an `@`.
fn time_token(letter: Option<char>) -> Result<Token, Failure> {
    match letter {
        Some('@') => Ok(Token::Text(b"@".into())),
        Some(letter) if TIMES.contains(letter) => Ok(Token::Time(letter)),
        Some(letter) => Err(Failure::new(format!("format: there is no @{letter}"))),
        None => Err(Failure::new("format: nothing after @")),
    }
}

/// Parses what follows a `\`.
fn escape(letter: Option<char>) -> Result<u8, Failure> {
    Ok(match letter {
        Some('\\') => b'\\',
        Some('0') => 0,
        Some('a') => 7,
        Some('e') => 27,
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('v') => 11,
        Some(letter) => return Err(Failure::new(format!("format: there is no \\{letter}"))),
        None => return Err(Failure::new("format: nothing after \\")),
    })
}

/// Appends one part of a message. Returns false if a JSON payload is requested and the payload is not JSON.
fn message(out: &mut Vec<u8>, letter: char, publish: &Publish<'_>, topic: &str, at: &Moment) -> bool {
    let properties = &publish.properties;
    let number = |value: Option<u32>| value.map_or(String::new(), |value| value.to_string());
    match letter {
        'p' => out.extend_from_slice(publish.payload),
        't' => out.extend_from_slice(topic.as_bytes()),
        'x' => hex(out, publish.payload, b"0123456789abcdef"),
        'X' => hex(out, publish.payload, b"0123456789ABCDEF"),
        'D' => out.extend_from_slice(properties.correlation_data.unwrap_or_default()),
        'C' => out.extend_from_slice(properties.content_type.unwrap_or_default().as_bytes()),
        'R' => out.extend_from_slice(properties.response_topic.unwrap_or_default().as_bytes()),
        'A' => out.extend(number(publish.topic_alias.map(u32::from)).bytes()),
        'E' => out.extend(number(properties.message_expiry).bytes()),
        'F' => out.extend(number(properties.payload_format.map(u32::from)).bytes()),
        'l' => out.extend(publish.payload.len().to_string().bytes()),
        'm' => out.extend(publish.packet_id.to_string().bytes()),
        'q' => out.extend((publish.qos as u8).to_string().bytes()),
        'r' => out.push(b'0' + u8::from(publish.retain)),
        'd' => out.push(b'0' + u8::from(publish.dup)),
        'I' => out.extend(at.iso().bytes()),
        'U' => out.extend(format!("{}.{:09}", at.unix_s, at.nanos).bytes()),
        'P' => joined(out, properties.user_properties.iter().map(|(key, value)| format!("{key}:{value}"))),
        'S' => joined(out, publish.subscription_ids.iter().map(|id| id.to_string())),
        'j' | 'J' => {
            let payload = if letter == 'j' { Payload::Text } else { Payload::Json };
            match object(publish, topic, at, payload) {
                Some(object) => out.extend(object.bytes()),
                None => return false,
            }
        }
        _ => unreachable!("parse() accepts no other letter"),
    }
    true
}

fn joined(out: &mut Vec<u8>, items: impl Iterator<Item = String>) {
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.extend(item.bytes());
    }
}

fn hex(out: &mut Vec<u8>, bytes: &[u8], digits: &[u8; 16]) {
    for byte in bytes {
        out.push(digits[usize::from(byte >> 4)]);
        out.push(digits[usize::from(byte & 15)]);
    }
}

fn time(out: &mut Vec<u8>, letter: char, at: &Moment) {
    let result = match letter {
        'Y' => write!(out, "{:04}", at.year),
        'm' => write!(out, "{:02}", at.month),
        'd' => write!(out, "{:02}", at.day),
        'H' => write!(out, "{:02}", at.hour),
        'M' => write!(out, "{:02}", at.minute),
        'S' => write!(out, "{:02}", at.second),
        'N' => write!(out, "{:09}", at.nanos),
        'j' => write!(out, "{:03}", at.day_of_year),
        'F' => write!(out, "{}", at.date()),
        'T' => write!(out, "{}", at.time()),
        's' => write!(out, "{}", at.unix_s),
        _ => unreachable!("parse() accepts no other letter"),
    };
    result.expect("writing to a vector cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_mqtt::packet::{MessageProperties, QoS};
    use std::time::Duration;

    fn printed(format: &str) -> String {
        let user = [("a", "1"), ("b", "2")];
        let publish = Publish {
            qos: QoS::ExactlyOnce,
            retain: true,
            packet_id: 42,
            subscription_ids: [3, 9].as_slice().into(),
            properties: MessageProperties {
                content_type: Some("text/plain"),
                response_topic: Some("re/ply"),
                correlation_data: Some(b"cd"),
                message_expiry: Some(60),
                user_properties: user.as_slice().into(),
                ..MessageProperties::default()
            },
            payload: "grüß".as_bytes(),
            ..Publish::default()
        };
        let mut out = Vec::new();
        let at = Moment::at(Duration::new(1_470_818_858, 5));
        Format::parse(format).unwrap().append(&mut out, &publish, "a/b", &at).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn prints_every_message_letter() {
        assert_eq!(printed("%t %p %l %q %r %d %m"), "a/b grüß 6 2 1 0 42");
        assert_eq!(printed("%x|%X"), "6772c3bcc39f|6772C3BCC39F");
        assert_eq!(printed("%C %R %D %E [%A%F] %P; %S"), "text/plain re/ply cd 60 [] a:1 b:2; 3 9");
        assert_eq!(printed("%%%t%%"), "%a/b%");
        assert!(printed("%j").contains("\"payload\":\"grüß\""));
    }

    #[test]
    fn prints_times_in_utc() {
        assert_eq!(
            printed("@Y-@m-@d @H:@M:@S.@N @j @s @@"),
            "2016-08-10 08:47:38.000000005 223 1470818858 @"
        );
        assert_eq!(printed("@F @T %I %U"), "2016-08-10 08:47:38 2016-08-10T08:47:38Z 1470818858.000000005");
    }

    #[test]
    fn pads_and_truncates_whole_characters() {
        assert_eq!(printed("[%6t][%-6t][%06l][%-06l]"), "[   a/b][a/b   ][000006][6     ]");
        assert_eq!(printed("[%.2t][%5.3p]"), "[a/][  grü]");
        assert_eq!(printed("[%06t]"), "[   a/b]", "only numbers are padded with zeros");
    }

    #[test]
    fn prints_escapes() {
        assert_eq!(printed(r"%t\t%q\n\\\0\a\e\v\r"), "a/b\t2\n\\\0\x07\x1b\x0b\r");
    }

    #[test]
    fn rejects_unknown_sequences() {
        for format in ["%z", "%", "%5", "@q", "@", r"\q", r"\", "%99999t"] {
            assert!(Format::parse(format).is_err(), "{format}");
        }
    }

    #[test]
    fn prints_nothing_if_the_payload_is_not_json() {
        let mut out = b"before".to_vec();
        let publish = Publish { payload: b"{", ..Publish::default() };
        let format = Format::parse("%t %J").unwrap();
        assert!(format.append(&mut out, &publish, "t", &Moment::now()).is_err());
        assert_eq!(out, b"before");
    }
}

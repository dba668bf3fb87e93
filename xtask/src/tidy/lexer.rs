//! Separates Rust code from what people read: comments and literals.
//!
//! This is not a parser. It knows just enough of the language (nested comments, raw strings, the difference between
//! `'a'` and `'a`) so that a search for a word finds it either as code or as prose.

/// A Rust source in two parts. Each part keeps the lines and columns of the text, with spaces in place of the other.
pub(crate) struct Split {
    /// Everything the compiler acts on, without the contents of literals.
    pub(crate) code: String,
    /// Comments and the contents of literals.
    pub(crate) prose: String,
}

/// Splits a source. A source that does not compile is split on a best-effort basis.
pub(crate) fn split(source: &str) -> Split {
    let bytes = source.as_bytes();
    let mut is_prose = vec![false; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let end = prose_end(bytes, at);
        is_prose[at..end].fill(true);
        at = end.max(at + 1);
    }
    let keep = |prose: bool| {
        let kept = bytes
            .iter()
            .zip(&is_prose)
            .map(|(&byte, &is)| if is == prose || byte == b'\n' { byte } else { b' ' });
        String::from_utf8(kept.collect()).expect("prose begins and ends at ASCII characters")
    };
    Split { code: keep(false), prose: keep(true) }
}

/// End of the comment or literal that begins at `at`; `at` itself if none begins there.
fn prose_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    match rest[0] {
        b'"' => string_end(bytes, at),
        b'r' if !follows_word(bytes, at) => raw_string_end(bytes, at),
        // `br"…"` and `cr"…"`: the prefix is left to the code part.
        b'r' if at > 0 && matches!(bytes[at - 1], b'b' | b'c') && !follows_word(bytes, at - 1) => {
            raw_string_end(bytes, at)
        }
        b'\'' => char_end(bytes, at),
        _ => at,
    }
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return start;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let found = bytes[open + 1..].windows(close.len()).position(|window| window == close);
    found.map_or(bytes.len(), |found| open + 1 + found + close.len())
}

/// A character literal, unless the quote begins a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    match bytes.get(start + 1) {
        Some(b'\\') => {
            let close = bytes[(start + 3).min(bytes.len())..].iter().position(|&byte| byte == b'\'');
            close.map_or(bytes.len(), |close| start + 3 + close + 1)
        }
        Some(&first) => {
            let length = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            if bytes.get(start + 1 + length) == Some(&b'\'') { start + 2 + length } else { start }
        }
        None => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_prose() {
        let source =
            "let a = \"unsafe \\\" x\"; // todo!()\n/* /* dbg! */ */ let b = 'x'; let c = r#\"\"fn\"\"#;";
        let Split { code, prose } = split(source);
        for word in ["unsafe", "todo", "dbg", "fn"] {
            assert!(!code.contains(word) && prose.contains(word), "{word}");
        }
        for word in ["let a = ", "let b = ", "let c = "] {
            assert!(code.contains(word) && !prose.contains(word), "{word}");
        }
    }

    #[test]
    fn lifetimes_and_escaped_quotes_do_not_confuse() {
        let code =
            split("fn f<'a>(x: &'a str, q: char) -> bool { q == '\\'' || q == 'é' || b'\"' == 1 } unsafe")
                .code;
        assert!(code.contains("fn f<'a>(x: &'a str") && code.ends_with("unsafe"), "{code}");
    }

    #[test]
    fn a_name_that_ends_in_r_begins_no_raw_string() {
        let code = split("for_each(r#type, br\"x y\", writer\"z\") unsafe").code;
        assert!(code.contains("r#type") && !code.contains("x y") && code.ends_with("unsafe"), "{code}");
    }

    #[test]
    fn lines_and_columns_stay() {
        let source = "a /* é\né */ b\n\"x\n\" c";
        let Split { code, prose } = split(source);
        for part in [code, prose] {
            let lengths = |text: &str| text.split('\n').map(str::len).collect::<Vec<_>>();
            assert_eq!(lengths(&part), lengths(source));
        }
    }
}

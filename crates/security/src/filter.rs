//! Relations between two topic filters: whether one covers the other, and whether they intersect.
//!
//! A subscription may be wider than the rules that allow it. Whether it is allowed as a whole, in part or not at all is
//! a question about the sets of topic names that two filters match (section 4.7 of MQTT).

/// Whether a filter that begins with a wildcard meets one that begins with `$`: they match no name in common
/// `[MQTT-4.7.2-1]`.
fn is_parted_by_dollar(a: &str, b: &str) -> bool {
    let wildcard = |filter: &str| filter.starts_with(['+', '#']);
    (wildcard(a) && b.starts_with('$')) || (wildcard(b) && a.starts_with('$'))
}

/// Returns whether `wide` matches every name that `narrow` matches. Both are valid filters; a topic name is one.
///
/// `+/#` matches what `#` matches and is not recognized as covering it.
pub fn covers(wide: &str, narrow: &str) -> bool {
    if is_parted_by_dollar(wide, narrow) {
        return false;
    }
    let mut narrow = narrow.split('/');
    for pattern in wide.split('/') {
        if pattern == "#" {
            return true;
        }
        match narrow.next() {
            Some("#") | None => return false,
            Some(level) if pattern == "+" || pattern == level => {}
            Some(_) => return false,
        }
    }
    narrow.next().is_none()
}

/// Returns whether some name is matched by both filters.
pub fn intersects(a: &str, b: &str) -> bool {
    if is_parted_by_dollar(a, b) {
        return false;
    }
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            // `#` also matches the parent level, so the other filter may have ended.
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(left), Some(right)) if left == "+" || right == "+" || left == right => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_topic::matches;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table() {
        for (wide, narrow, expected) in [
            ("#", "a/b", true),
            ("#", "a/#", true),
            ("#", "$SYS/a", false),
            ("$SYS/#", "$SYS/a", true),
            ("$SYS/#", "#", false),
            ("+/a", "$SYS/a", false),
            ("a/#", "a", true),
            ("a/+", "a/#", false),
            ("a/+", "a/b", true),
            ("a/+", "a/+", true),
            ("a/b", "a/+", false),
            ("a/#", "a/+/c", true),
            ("a/+/c", "a/#", false),
            ("a", "a/b", false),
            ("a/b", "a", false),
        ] {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
        for (a, b, expected) in [
            ("a/+", "+/b", true),
            ("a/#", "a", true),
            ("a/b/#", "a", false),
            ("a/+/c", "a/b/#", true),
            ("a/+/c", "a/b/d", false),
            ("#", "$SYS/a", false),
            ("$SYS/+", "$SYS/a", true),
            ("a", "b", false),
        ] {
            assert_eq!((intersects(a, b), intersects(b, a)), (expected, expected), "{a} {b}");
        }
    }

    /// All names of up to four levels over a small alphabet, which includes one level that no filter contains.
    fn names() -> Vec<String> {
        let mut names: Vec<String> = ["a", "b", "$a", ""].iter().map(|&level| level.to_owned()).collect();
        let mut longest = names.clone();
        for _ in 0..3 {
            longest = longest
                .iter()
                .flat_map(|name| ["a", "b", "z", ""].map(|level| format!("{name}/{level}")))
                .collect();
            names.extend(longest.iter().cloned());
        }
        // The empty name is not valid; it is here because `/#` and `+` have it in common as strings.
        names.push("z".to_owned());
        names
    }

    fn filters() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just("a"), Just("b"), Just("+"), Just("")];
        let first = prop_oneof![3 => level.clone(), 1 => Just("$a")];
        (first, proptest::collection::vec(level, 0..3), any::<bool>())
            .prop_map(|(first, rest, multi)| {
                let mut filter = first.to_owned();
                for level in rest {
                    filter = format!("{filter}/{level}");
                }
                if multi { format!("{filter}/#") } else { filter }
            })
            .prop_filter("a filter is not empty", |filter| !filter.is_empty())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
        #[test]
        fn relations_are_those_of_the_sets_of_names(a in filters(), b in filters()) {
            let names = names();
            let both = names.iter().any(|name| matches(&a, name) && matches(&b, name));
            prop_assert_eq!(intersects(&a, &b), both, "{} {}", a, b);
            let all = names.iter().filter(|name| matches(&b, name)).all(|name| matches(&a, name));
            // `#` needs names that are longer than the ones here.
            if covers(&a, &b) || !b.ends_with('#') {
                prop_assert_eq!(covers(&a, &b), all, "{} {}", a, b);
            }
        }
    }
}

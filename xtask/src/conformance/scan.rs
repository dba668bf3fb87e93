//! Finds the citations of statements in tests.
//!
//! A citation is `MQTT5-` with a number, in a comment above the test or anywhere inside it. The test is found from
//! lines and indentation alone, with the same rules for every language, so no parser is needed.

use crate::repo::{File, Repo};

/// Citation prefixes, one per specification.
const PREFIXES: [&str; 2] = ["MQTT5-", "MQTT3-"];

/// One citation of one statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Citation {
    /// With its prefix, such as `MQTT5-3.1.0-1`.
    pub(super) statement: String,
    pub(super) path: String,
    pub(super) line: usize,
    /// `None` if it does not belong to a test.
    pub(super) test: Option<String>,
}

/// Syntax of comments and tests in a language.
struct Language {
    /// Prefixes of lines that may stand between a citation and its test.
    between: &'static [&'static str],
    /// Name of the function or test that starts on this line.
    begins: fn(&str) -> Option<String>,
    /// Whether it is a test, from the line and the lines above it.
    is_test: fn(&str, &[&str]) -> bool,
}

const RUST: Language = Language { between: &["//", "#"], begins: rust_function, is_test: is_rust_test };
const PYTHON: Language =
    Language { between: &["#", "@"], begins: python_function, is_test: |line, _| line.contains("def test") };
const JAVASCRIPT: Language =
    Language { between: &["//", "/*", "*"], begins: javascript_test, is_test: |_, _| true };
const JAVA: Language =
    Language { between: &["//", "/*", "*", "@"], begins: java_method, is_test: is_java_test };

/// All citations in files that may contain tests.
pub(super) fn citations(repo: &Repo) -> Vec<Citation> {
    repo.files.iter().filter(|file| holds_tests(&file.path)).flat_map(citations_in).collect()
}

fn holds_tests(path: &str) -> bool {
    let in_crate = path.starts_with("crates/") && (path.contains("/tests/") || path.contains("/src/"));
    in_crate || path.starts_with("tests/")
}

fn language(file: &File) -> Option<&'static Language> {
    match file.path.rsplit_once('.')?.1 {
        "rs" => Some(&RUST),
        "py" => Some(&PYTHON),
        "js" | "mjs" | "cjs" | "ts" => Some(&JAVASCRIPT),
        "java" => Some(&JAVA),
        _ => None,
    }
}

fn citations_in(file: &File) -> Vec<Citation> {
    let Some(language) = language(file) else { return Vec::new() };
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        // The module documentation does not belong to a test.
        if line.trim_start().starts_with("//!") {
            continue;
        }
        for statement in cited(line) {
            let test = test_at(language, &lines, at);
            found.push(Citation { statement, path: file.path.clone(), line: at + 1, test });
        }
    }
    found
}

/// Statement ids in a line.
fn cited(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for prefix in PREFIXES {
        for (at, _) in line.match_indices(prefix) {
            let number: String = line[at + prefix.len()..]
                .chars()
                .take_while(|part| part.is_ascii_digit() || ".-".contains(*part))
                .collect();
            // A prefix without a number is not a citation.
            if !number.is_empty() {
                found.push(format!("{prefix}{}", number.trim_end_matches(['.', '-'])));
            }
        }
    }
    found
}

/// The test of a citation: the next one if only comments and attributes are in between, else the enclosing one.
fn test_at(language: &Language, lines: &[&str], at: usize) -> Option<String> {
    let is_between = |line: &str| {
        line.trim().is_empty() || language.between.iter().any(|mark| line.trim_start().starts_with(mark))
    };
    let below =
        is_between(lines[at]).then(|| (at..lines.len()).find(|&below| !is_between(lines[below]))).flatten();
    let next = below.filter(|&below| (language.begins)(lines[below]).is_some());
    let begin = next.or_else(|| enclosing(language, lines, at))?;
    let name = (language.begins)(lines[begin])?;
    (language.is_test)(lines[begin], &lines[..begin]).then_some(name)
}

/// First line of the enclosing function: the nearest line above with less indentation that starts a function.
fn enclosing(language: &Language, lines: &[&str], at: usize) -> Option<usize> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut least = indent(lines[at]);
    for above in (0..at).rev() {
        let line = lines[above];
        if !line.trim().is_empty() && indent(line) < least {
            if (language.begins)(line).is_some() {
                return Some(above);
            }
            least = indent(line);
        }
    }
    None
}

/// The identifier at the start of a text.
fn identifier(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|part| part.is_alphanumeric() || *part == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// `fn name`, or a macro that generates tests: `macro!(name, ...)`.
fn rust_function(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some((before, after)) = line.split_once("fn ") {
        let is_plain =
            before.split_whitespace().all(|word| matches!(word, "pub" | "pub(crate)" | "async" | "const"));
        return identifier(after).filter(|_| is_plain);
    }
    let (name, arguments) = line.split_once("!(").or_else(|| line.split_once("! {"))?;
    identifier(name).filter(|found| found == name && !found.starts_with("assert") && found != "panic")?;
    identifier(arguments.trim_start())
}

/// A function is a test if it has a test attribute. A macro call is assumed to generate a test.
fn is_rust_test(line: &str, above: &[&str]) -> bool {
    let is_attribute_or_comment = |line: &&&str| line.trim_start().starts_with(['#', '/']);
    let marked = || above.iter().rev().take_while(is_attribute_or_comment).any(|line| line.contains("test]"));
    !line.contains("fn ") || marked()
}

fn python_function(line: &str) -> Option<String> {
    let line = line.trim_start();
    identifier(line.strip_prefix("async ").unwrap_or(line).strip_prefix("def ")?)
}

/// `test('name', ...)` and `it('name', ...)`, also as methods of a context.
fn javascript_test(line: &str) -> Option<String> {
    let line = line.trim_start().trim_start_matches("await ");
    let (call, arguments) = line.split_once('(')?;
    let function = call.rsplit_once('.').map_or(call, |(_, function)| function);
    let quote = arguments.chars().next().filter(|quote| "'\"`".contains(*quote))?;
    if !matches!(function, "test" | "it") {
        return None;
    }
    arguments[1..].split(quote).next().map(str::to_owned)
}

fn java_method(line: &str) -> Option<String> {
    let (before, after) = line.trim_start().split_once("void ")?;
    let is_plain = before
        .split_whitespace()
        .all(|word| matches!(word, "public" | "private" | "protected" | "static" | "final"));
    identifier(after).filter(|name| is_plain && after[name.len()..].starts_with('('))
}

fn is_java_test(_: &str, above: &[&str]) -> bool {
    let is_between = |line: &&&str| JAVA.between.iter().any(|mark| line.trim_start().starts_with(mark));
    above.iter().rev().take_while(is_between).any(|line| {
        let line = line.trim_start();
        ["@Test", "@ParameterizedTest", "@RepeatedTest"].iter().any(|mark| line.starts_with(mark))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces `@5` and `@3` by the prefixes, so that this file contains no citations itself.
    fn found(path: &str, text: &str) -> Vec<String> {
        let text = text.replace("@5", &["MQTT5", ""].join("-")).replace("@3", &["MQTT3", ""].join("-"));
        let citations = citations(&Repo::planted(&[(path, &text)]));
        citations
            .into_iter()
            .map(|found| format!("{} {}", found.statement, found.test.unwrap_or_default()))
            .collect()
    }

    #[test]
    fn finds_rust_comments_above_and_inside_a_test() {
        let text = "\
// [@51.0.0-1], [@31.0.0-1].
/// And [@52.0.0-2].
#[test]
#[should_panic]
fn first() {
    for x in y {
        // [@53.0.0-3]
        assert_eq!(x, y);
    }
}

fn helper() {
    // [@54.0.0-4]
}

// [@55.0.0-5]
const TABLE: [u8; 1] = [
    1, // [@56.0.0-6]
];

// [@57.0.0-7]
both_versions!(made_by_macro, {
    1
});
";
        let expected = [
            "MQTT5-1.0.0-1 first",
            "MQTT3-1.0.0-1 first",
            "MQTT5-2.0.0-2 first",
            "MQTT5-3.0.0-3 first",
            "MQTT5-4.0.0-4 ",
            "MQTT5-5.0.0-5 ",
            "MQTT5-6.0.0-6 ",
            "MQTT5-7.0.0-7 made_by_macro",
        ];
        assert_eq!(found("crates/a/tests/t.rs", text), expected);
    }

    #[test]
    fn ignores_module_documentation_and_other_files() {
        assert!(found("crates/a/src/lib.rs", "//! [@51.0.0-1]\n").is_empty());
        assert!(found("docs/a.rs", "// [@51.0.0-1]\n#[test]\nfn a() {}\n").is_empty());
        assert!(found("tests/README.md", "[@51.0.0-1]\n").is_empty());
    }

    #[test]
    fn finds_python_comments_decorators_and_docstrings() {
        let text = "\
# [@51.0.0-1]
@pytest.mark.x
async def test_a(broker):
    \"\"\"Shows [@52.0.0-2].\"\"\"
    if x:
        pass  # [@53.0.0-3]

def helper():
    # [@54.0.0-4]
    pass
";
        let expected =
            ["MQTT5-1.0.0-1 test_a", "MQTT5-2.0.0-2 test_a", "MQTT5-3.0.0-3 test_a", "MQTT5-4.0.0-4 "];
        assert_eq!(found("tests/python/test_x.py", text), expected);
    }

    #[test]
    fn finds_javascript_tests_by_title() {
        let text = "\
// [@51.0.0-1]
test('a title', async () => {
  // [@52.0.0-2]
  await t.test(\"inner\", () => {
    call(); // [@53.0.0-3]
  })
})
";
        let expected = ["MQTT5-1.0.0-1 a title", "MQTT5-2.0.0-2 inner", "MQTT5-3.0.0-3 inner"];
        assert_eq!(found("tests/node/x.test.mjs", text), expected);
    }

    #[test]
    fn finds_java_methods_with_a_test_annotation() {
        let text = "\
class T {
    /** [@51.0.0-1] */
    @Test
    void a() {
        run(); // [@52.0.0-2]
    }

    // [@53.0.0-3]
    private void helper() {
    }
}
";
        let expected = ["MQTT5-1.0.0-1 a", "MQTT5-2.0.0-2 a", "MQTT5-3.0.0-3 "];
        assert_eq!(found("tests/java/T.java", text), expected);
    }
}

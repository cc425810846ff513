//! Regular expressions of strangers: JavaScript's syntax, run in linear time.
//!
//! What JavaScript reads in another way than the `regex` crate is rewritten here. Look-around and
//! back-references, which need backtracking, are refused; so is what grows beyond the limits.

use regex::{RegexBuilder, RegexSet, RegexSetBuilder};

use super::Pattern;

/// Compiled size of one expression, and of all of a book.
const PATTERN_BYTES_MAX: usize = 128 << 10;
const SET_BYTES_MAX: usize = 4 << 20;
const NESTING_MAX: u32 = 50;

/// The last bytes of a text that expressions are tried on: however they are written, a text costs no
/// more than so many bytes times their compiled size.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// All expressions of a book in one automaton.
#[derive(Debug)]
pub struct Patterns {
    set: RegexSet,
    /// By the set's number: the index of the pattern.
    indexes: Vec<usize>,
    refused: Vec<(usize, String)>,
}

impl Patterns {
    pub fn new(patterns: &[Pattern<'_>]) -> Self {
        let mut refused = Vec::new();
        let mut indexes = Vec::new();
        let mut texts = Vec::new();
        for (index, pattern) in patterns.iter().enumerate() {
            match checked(pattern) {
                Ok(text) => {
                    indexes.push(index);
                    texts.push(text);
                }
                Err(reason) => refused.push((index, reason)),
            }
        }
        let set = RegexSetBuilder::new(&texts)
            .size_limit(SET_BYTES_MAX)
            .nest_limit(NESTING_MAX + 1)
            .build();
        let set = set.unwrap_or_else(|_| {
            let reason = format!("the book's expressions are more than {SET_BYTES_MAX} bytes");
            refused.extend(indexes.drain(..).map(|index| (index, reason.clone())));
            refused.sort_unstable();
            RegexSet::empty()
        });
        Self {
            set,
            indexes,
            refused,
        }
    }

    pub fn refused(&self) -> &[(usize, String)] {
        &self.refused
    }

    /// The indexes of the patterns that match in a text, ascending.
    pub fn matches(&self, text: &str) -> impl Iterator<Item = usize> {
        let mut start = text.len().saturating_sub(TEXT_BYTES_MAX);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        let found = self.set.matches(&text[start..]);
        found.into_iter().map(|number| self.indexes[number])
    }
}

/// The expression as the crate writes it, compiled once alone.
fn checked(pattern: &Pattern<'_>) -> Result<String, String> {
    let (body, flags) = parts(pattern.text).unwrap_or((pattern.text, ""));
    let mut inline = String::new();
    if !pattern.case_sensitive && flags.is_empty() && body == pattern.text {
        inline.push('i');
    }
    for flag in flags.chars() {
        match flag {
            'i' | 'm' | 's' if !inline.contains(flag) => inline.push(flag),
            'i' | 'm' | 's' | 'g' | 'u' | 'v' | 'y' | 'd' => {}
            _ => return Err(format!("there is no flag {flag:?}")),
        }
    }
    let body = translated(body)?;
    let text = if inline.is_empty() {
        format!("(?:{body})")
    } else {
        format!("(?{inline}:{body})")
    };
    RegexBuilder::new(&text)
        .size_limit(PATTERN_BYTES_MAX)
        .nest_limit(NESTING_MAX + 1)
        .build()
        .map_err(|error| reason(&error))?;
    Ok(text)
}

/// `/body/flags`; None for an expression without slashes around it.
fn parts(text: &str) -> Option<(&str, &str)> {
    let (body, flags) = text.strip_prefix('/')?.rsplit_once('/')?;
    let is_flags = flags.chars().all(|flag| flag.is_ascii_lowercase());
    (is_flags && !body.is_empty()).then_some((body, flags))
}

/// One line of the crate's explanation.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(limit) => format!("it is more than {limit} bytes compiled"),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default().trim();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

/// Rewrite what means something else in JavaScript: classes of ASCII alone, `[` within a class, escaped
/// characters that are operators of the crate.
fn translated(body: &str) -> Result<String, String> {
    let mut out = String::with_capacity(body.len() + 16);
    let mut in_class = false;
    let mut characters = body.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let Some(escaped) = characters.next() else {
                    return Err("it ends with a backslash".to_owned());
                };
                let digit = characters.peek().is_some_and(char::is_ascii_digit);
                out.push_str(&unescaped(escaped, in_class, digit)?);
            }
            '[' if in_class => out.push_str("\\["),
            '[' => {
                in_class = true;
                out.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                if characters.peek() == Some(&']') {
                    return Err("an empty class".to_owned());
                }
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(character);
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            _ => out.push(character),
        }
    }
    Ok(out)
}

fn unescaped(escaped: char, in_class: bool, digit: bool) -> Result<String, String> {
    let ascii = |class: &str| {
        if in_class && !class.starts_with('^') {
            class.to_owned()
        } else {
            format!("[{class}]")
        }
    };
    Ok(match escaped {
        'w' => ascii("0-9A-Za-z_"),
        'd' => ascii("0-9"),
        'W' => ascii("^0-9A-Za-z_"),
        'D' => ascii("^0-9"),
        'b' if in_class => "\\x08".to_owned(),
        // JavaScript's words are ASCII's; Unicode's would keep the fast automaton from running.
        'b' => "(?-u:\\b)".to_owned(),
        '0' if !digit => "\\x00".to_owned(),
        '1'..='9' | 'k' => return Err("backreferences are not supported".to_owned()),
        '<' | '>' => escaped.to_string(),
        _ => format!("\\{escaped}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Patterns {
        let patterns: Vec<Pattern<'_>> = texts
            .iter()
            .map(|text| Pattern {
                text,
                case_sensitive: false,
            })
            .collect();
        Patterns::new(&patterns)
    }

    fn found(text: &str, in_text: &str) -> bool {
        let patterns = patterns(&[text]);
        assert_eq!(patterns.refused(), [], "{text}");
        patterns.matches(in_text).next().is_some()
    }

    #[test]
    fn flags_are_javascripts() {
        assert!(found("/dragon/i", "DRAGON"));
        assert!(!found("/dragon/", "DRAGON"));
        assert!(found("dragon", "DRAGON"));
        assert!(found("/^b$/gm", "a\nb"));
        assert!(!found("/^b$/", "a\nb"));
        assert!(found("/a.b/su", "a\nb"));
        assert!(found("and/or", "and/or"));
    }

    #[test]
    fn escapes_and_classes_are_javascripts() {
        assert!(found(r"/a\/b/", "a/b"));
        assert!(found(r"/\bk[\w-]+\b/", "a k-9 b"));
        assert!(!found(r"/^\w$/", "é"));
        assert!(found(r"/[[&&~]x/", "&x"));
        assert!(found(r"/\<b\>/", "<b>"));
        assert!(found(r"/[\W]/", "é"));
        assert!(!found(r"/[^\d\w]/", "a1"));
        assert!(found("/(?<name>x)y/", "xy"));
    }

    #[test]
    fn what_needs_backtracking_is_refused_and_never_found() {
        for text in ["/a(?=b)/", "/(?!a)b/", "/(?<=a)b/", "/(?<!a)b/"] {
            let patterns = patterns(&[text, "b"]);
            let (index, reason) = &patterns.refused()[0];
            assert_eq!(*index, 0);
            assert!(reason.contains("look-around"), "{reason}");
            assert_eq!(patterns.matches("ab").collect::<Vec<_>>(), [1]);
        }
        for text in [r"/(a)\1/", r"/(?<x>a)\k<x>/"] {
            let patterns = patterns(&[text]);
            assert!(patterns.refused()[0].1.contains("backreferences"), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_a_reason() {
        for text in ["/(/", "a{", "[", "[]", "x\\", "/a/q", "*", r"\q"] {
            let patterns = patterns(&[text]);
            assert_eq!(patterns.refused().len(), 1, "{text}");
            assert!(!patterns.refused()[0].1.is_empty(), "{text}");
            assert!(!patterns.refused()[0].1.contains('\n'), "{text}");
        }
    }

    #[test]
    fn sizes_are_bounded_alone_and_together() {
        let one = patterns(&[r"(?:a{1000}){1000}", "b"]);
        assert!(one.refused()[0].1.contains("bytes compiled"));
        assert_eq!(one.matches("b").collect::<Vec<_>>(), [1]);
        let many = vec![r"[a-z\u0400-\u04FF]{40}"; 600];
        let all = patterns(&many);
        assert_eq!(all.refused().len(), 600);
        assert!(all.refused()[0].1.contains("the book's expressions"));
        assert_eq!(all.matches("x").count(), 0);
        assert_eq!(patterns(&["(".repeat(60).as_str()]).refused().len(), 1);
    }

    #[test]
    fn the_end_of_a_long_text_is_what_is_looked_at() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        assert!(!found("x", &format!("x{long}")));
        assert!(found("x", &format!("{long}x")));
    }
}

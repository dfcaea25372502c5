//! Environment variables in values of a template: `${NAME}`.
//!
//! Passwords come from them. Plans and results hold the name; the value is read when an instance starts.

use std::env;

/// `text` with each `${NAME}` replaced by `value` of its name.
///
/// # Errors
/// The first error of `value`.
fn replaced(text: &str, mut value: impl FnMut(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out += before;
        let name = after.split_once('}').filter(|(name, _)| is_name(name));
        rest = match name {
            Some((name, behind)) => {
                out += &value(name)?;
                behind
            }
            // Other programs have such forms too, as `${sys:user.home}`.
            None => {
                out += "${";
                after
            }
        };
    }
    Ok(out + rest)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Names of the variables in `text`.
pub(crate) fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let note = |name: &str| {
        names.push(name.to_owned());
        Ok(String::new())
    };
    // Taking a note never fails.
    let _ = replaced(text, note);
    names
}

/// `text` with the values of its variables.
///
/// # Errors
/// A variable is not set. The text names it.
pub(crate) fn filled(text: &str) -> Result<String, String> {
    replaced(text, |name| {
        env::var(name).map_err(|error| format!("cannot read the environment variable {name}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_variables() {
        for (text, found, filled) in [
            ("${A}", "A", "<A>"),
            ("a ${B_1} b ${_c}${A}", "B_1 _c A", "a <B_1> b <_c><A>"),
            ("$A, ${}, ${1}, ${sys:home}, ${A", "", "$A, ${}, ${1}, ${sys:home}, ${A"),
            ("${x:${A}}", "A", "${x:<A>}"),
        ] {
            assert_eq!(names(text).join(" "), found, "{text}");
            assert_eq!(replaced(text, |name| Ok(format!("<{name}>"))).unwrap(), filled, "{text}");
        }
        let wrong = filled("${TENBIN_TEST_IS_NOT_SET}").unwrap_err();
        assert!(wrong.contains("TENBIN_TEST_IS_NOT_SET"), "{wrong}");
    }
}

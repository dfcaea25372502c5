//! Mistakes of a template, with their places.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Line and column of a value, from 1; 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Line of the file.
    pub line: u32,
    /// Character of the line.
    pub column: u32,
}

/// A mistake in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// File as the user named it.
    pub file: String,
    /// Place of the value or key.
    pub place: Place,
    /// Description of the mistake.
    pub message: String,
    /// How to correct it.
    pub correction: Option<String>,
}

/// All mistakes of a template, in the order of the file. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(Vec<Mistake>);

/// Collects mistakes while a file is read.
#[derive(Debug)]
pub(crate) struct Complaints {
    file: String,
    mistakes: Vec<Mistake>,
    /// Maps with the keys that were looked for, for tests of the documentation.
    #[cfg(test)]
    pub(crate) keys: Vec<(String, Vec<&'static str>)>,
}

impl Complaints {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            mistakes: Vec::new(),
            #[cfg(test)]
            keys: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, place: Place, message: impl Into<String>, correction: impl Into<Option<String>>) {
        let mistake =
            Mistake { file: self.file.clone(), place, message: message.into(), correction: correction.into() };
        // Variants share most of the file, and with it the mistakes.
        if !self.mistakes.contains(&mistake) {
            self.mistakes.push(mistake);
        }
    }

    /// Adds the mistake that nothing has the name `given`.
    pub(crate) fn unknown<'a>(
        &mut self,
        place: Place,
        what: &str,
        given: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        let correction = suggestion(given, known).unwrap_or_else(|| format!("the file has no {what}; add it"));
        self.add(place, format!("unknown {what} {given:?}"), correction);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Ends with `value`, or with the mistakes if there are any.
    pub(crate) fn end<T>(mut self, value: T) -> Result<T, Mistakes> {
        if self.mistakes.is_empty() {
            return Ok(value);
        }
        self.mistakes.sort_by_key(|mistake| mistake.place);
        Err(Mistakes(self.mistakes))
    }
}

impl Mistakes {
    /// The mistakes, in the order of the file.
    pub fn all(&self) -> &[Mistake] {
        &self.0
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, message, correction } = self;
        write!(f, "{file}:")?;
        if place.line > 0 {
            write!(f, "{}:{}:", place.line, place.column)?;
        }
        write!(f, " {message}")?;
        match correction {
            Some(correction) => write!(f, "; {correction}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            write!(f, "{}{mistake}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// `did you mean "x"?`, or all known names if none is near and they are few.
pub(crate) fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let known: Vec<_> = known.into_iter().collect();
    let near = known.iter().map(|name| (strsim::damerau_levenshtein(&given.to_lowercase(), name), name));
    let best = near.filter(|&(distance, name)| distance <= name.len().max(given.len()).div_ceil(3)).min();
    match best {
        Some((_, name)) => Some(format!("did you mean {name:?}?")),
        None if known.is_empty() => None,
        None if known.len() == 1 => Some(format!("known is {}", known[0])),
        None => Some(format!("known are {}", known.join(", "))),
    }
}

//! Templates that a command line names.

use std::path::Path;

use crate::args::FileArgs;
use crate::error::Error;
use crate::plan::Plan;
use crate::template::{Template, suggestion};
use crate::{configs, library};

impl FileArgs {
    /// Plans of all chosen variants, in order.
    ///
    /// # Errors
    /// Unreadable files, mistakes in templates, and unknown variants.
    pub fn plans(&self) -> Result<Vec<Plan>, Error> {
        let mut plans = Vec::new();
        let mut unknown = self.variant.clone();
        let mut known = Vec::new();
        for path in &self.files {
            let templates = Template::read_with(&path.display().to_string(), &text(path)?, &self.set)?;
            for template in templates {
                known.push(template.variant.clone());
                if !self.variant.is_empty() && !self.variant.contains(&template.variant) {
                    continue;
                }
                unknown.retain(|name| *name != template.variant);
                let mut plan = Plan::new(&template, self.seed)?;
                let failed = |(path, error)| Error::Unreadable { path, error, suggestion: None };
                plan.configs = configs::find(path, &plan.members).map_err(failed)?;
                plans.push(plan);
            }
        }
        match unknown.pop() {
            None => Ok(plans),
            Some(name) => {
                let file = self.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
                let suggestion = suggestion(&name, known.iter().map(String::as_str));
                Err(Error::UnknownVariant { file, name, suggestion })
            }
        }
    }
}

/// Reads a template: a file, or a ready verification by its name.
///
/// # Errors
/// An unreadable file, and mistakes in it.
pub(crate) fn read(path: &Path) -> Result<Vec<Template>, Error> {
    Ok(Template::read(&path.display().to_string(), &text(path)?)?)
}

/// Text of a template: a file, or a ready verification by its name.
///
/// # Errors
/// An unreadable file.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    let name = path.to_str().unwrap_or_default();
    if let Some(ready) = library::at(path) {
        return Ok(ready.text.to_owned());
    }
    match tenbin_kit::files::read_text(path) {
        Ok(text) => Ok(text),
        Err(error) => {
            let is_name = !name.contains(['/', '.']);
            let suggestion = if is_name { suggestion(name, library::ALL.iter().map(|ready| ready.name)) } else { None };
            Err(Error::Unreadable { path: path.to_owned(), error, suggestion })
        }
    }
}

//! The dashboard: a page with its script and style sheet. They contain nothing of this broker, so that reading them needs
//! no token; all figures come from `/api/v1`.

use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};

/// A file of the dashboard.
struct Asset {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

/// Paths of the files, for routes.
pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
    ASSETS.iter().map(|asset| asset.path)
}

/// Returns whether a file of the dashboard is at `path`.
pub(crate) fn has(path: &str) -> bool {
    paths().any(|of| of == path)
}

/// Handler of all files.
pub(crate) async fn file(uri: Uri) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == uri.path()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, asset.media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The next version of the broker has other files.
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, asset.text).into_response()
}

const ASSETS: [Asset; 4] = [
    Asset { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("../assets/dashboard.html") },
    Asset {
        path: "/dashboard.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("../assets/dashboard.js"),
    },
    Asset {
        path: "/dashboard.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("../assets/dashboard.css"),
    },
    Asset { path: "/dashboard.svg", media_type: "image/svg+xml", text: include_str!("../assets/dashboard.svg") },
];

/// No script, style or request but from here, and no other page around it.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_together_have_at_most_120_kilobytes() {
        assert!(ASSETS.iter().map(|asset| asset.text.len()).sum::<usize>() <= 120_000);
    }
}

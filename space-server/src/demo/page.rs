//! The page's files, compiled into the program, and `/demo.json`, which tells the page where its documents are.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::DemoSite;

/// A file of the page: path, content type, content.
type PageFile = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

macro_rules! page_file {
    ($name:literal, $kind:expr) => {
        (
            concat!("/", $name),
            $kind,
            include_str!(concat!("../../page/", $name)),
        )
    };
}

const FILES: &[PageFile] = &[
    page_file!("index.html", HTML),
    page_file!("style.css", CSS),
    page_file!("main.js", JS),
    page_file!("bytes.js", JS),
    page_file!("codec.js", JS),
    page_file!("hash.js", JS),
    page_file!("identity.js", JS),
    page_file!("replica.js", JS),
    page_file!("session.js", JS),
    page_file!("events.js", JS),
    page_file!("draft.js", JS),
    page_file!("poll.js", JS),
    page_file!("panel.js", JS),
];

/// The page's routes, for mounting beside the server's.
pub fn routes(site: &DemoSite) -> Router {
    let description = site.to_json();
    let mut router = Router::new().route(
        "/demo.json",
        get(move || {
            let description = description.clone();
            async move {
                (
                    [
                        (header::CONTENT_TYPE, "application/json"),
                        (header::CACHE_CONTROL, "no-store"),
                    ],
                    description,
                )
            }
        }),
    );
    for &(path, kind, content) in FILES {
        let serve = move || async move { file(kind, content) };
        router = router.route(path, get(serve));
        if path == "/index.html" {
            router = router.route("/", get(serve));
        }
    }
    router
}

/// `no-cache`: a new version of the program is a new version of the page. Only this origin may be spoken to.
fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ];
    (headers, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_that_a_file_imports_is_served() {
        for (path, _, content) in FILES.iter().filter(|(path, ..)| path.ends_with(".js")) {
            for line in content.lines() {
                if let Some(from) = line.split_once("from \"./").map(|(_, rest)| rest) {
                    let name = from.split('"').next().unwrap_or_default();
                    assert!(
                        FILES.iter().any(|(p, ..)| p[1..] == *name),
                        "{path} imports {name}, which is not served"
                    );
                }
            }
        }
    }
}

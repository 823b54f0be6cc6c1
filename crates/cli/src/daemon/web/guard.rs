//! Which requests are answered at all: by the names that they use, and by what the browser says of their
//! origin.
//!
//! A page of another site can have a browser send requests here, and by DNS rebinding even read the answers:
//! then the name in `Host` is that site's. So only names that can't be anything but this machine are
//! answered, and with TLS those that the certificate is for. The port is not compared, so that the page can
//! be had through `ssh -L` with another port. Pure.

use std::net::IpAddr;

use hyper::{HeaderMap, Method, Uri, header};

/// Names, beside loopback addresses, that lead to this machine in every browser (RFC 6761, section 6.3).
const NAMES: [&str; 2] = ["localhost", "pinstripe.localhost"];

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its `Host` isn't a name of this machine.
    Host,
    /// It comes from a page of another origin, or doesn't say where it comes from.
    Origin,
}

impl Refused {
    /// A sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Host => {
                "refused: this page has the names localhost, pinstripe.localhost, 127.0.0.1 and [::1], over https also those of \
                 its certificate, and was asked for by another one\n"
            }
            Self::Origin => {
                "refused: the request does not come from this page. Open the page itself, and use its forms\n"
            }
        }
    }
}

/// Whether the server's certificate is for a name.
pub type Names<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// Looks at a request before anything else does. `is_page`: it may be opened by a link from anywhere.
/// `names`: the request came over TLS.
pub fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    is_page: bool,
    names: Option<Names<'_>>,
) -> Result<(), Refused> {
    let host = only(headers, &header::HOST).ok_or(Refused::Host)?;
    let is_same = uri.authority().is_none_or(|authority| authority.as_str() == host);
    if !is_same || !is_here(host, names) {
        return Err(Refused::Host);
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"));
    if *method == Method::POST {
        let scheme = if names.is_some() { "https://" } else { "http://" };
        // Every browser says where a form comes from.
        let origin = only(headers, &header::ORIGIN).and_then(|origin| origin.strip_prefix(scheme));
        let is_own = origin == Some(host) && site.is_none_or(|site| site == "same-origin");
        return if is_own { Ok(()) } else { Err(Refused::Origin) };
    }
    let is_link = is_page && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
    let is_own = site.is_none_or(|site| matches!(site, "same-origin" | "none")) || is_link;
    if is_own { Ok(()) } else { Err(Refused::Origin) }
}

/// The value of a header that stands there once.
fn only<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let value = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(value)
}

/// Whether a `Host` is a name of this machine, with any port.
pub fn is_here(host: &str, names: Option<Names<'_>>) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: Option<IpAddr> = match address {
        Some(six) => six.parse().ok().filter(IpAddr::is_ipv6),
        None => name.parse().ok().filter(IpAddr::is_ipv4),
    };
    let certified = |names: Names<'_>| match address {
        Some(address) => names(&address.to_string()),
        None => names(name),
    };
    address.is_some_and(|address| address.is_loopback())
        || NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
        || names.is_some_and(certified)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(
        method: &str,
        uri: &str,
        headers: &[(&'static str, &str)],
        is_page: bool,
    ) -> Result<(), Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check(&method.parse().unwrap(), &uri.parse().unwrap(), &map, is_page, None)
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in [
            "127.0.0.1:9661",
            "127.9.9.9",
            "[::1]:9661",
            "[::1]",
            "localhost:1",
            "LocalHost",
            "pinstripe.localhost:9661",
        ] {
            assert_eq!(asked("GET", "/", &[("host", host)], true), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9661",
            "192.0.2.1:9661",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "",
            ":9661",
            "127.0.0.1:x",
            "127.0.0.1:99999",
            "[127.0.0.1]",
            "::1",
            "[::1",
            "0.0.0.0",
            "a@127.0.0.1",
            "127.0.0.1:9661:1",
        ] {
            assert_eq!(asked("GET", "/", &[("host", host)], true), Err(Refused::Host), "{host}");
        }
        assert_eq!(asked("GET", "/", &[], true), Err(Refused::Host));
        let twice = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert_eq!(asked("GET", "/", &twice, true), Err(Refused::Host));
        let other = asked("GET", "http://evil.example/", &[("host", "127.0.0.1")], true);
        assert_eq!(other, Err(Refused::Host), "two names");
    }

    #[test]
    fn a_form_comes_from_this_page_or_is_refused() {
        let host = ("host", "127.0.0.1:9661");
        let own = ("origin", "http://127.0.0.1:9661");
        assert_eq!(asked("POST", "/act", &[host, own], true), Ok(()));
        assert_eq!(asked("POST", "/act", &[host, own, ("sec-fetch-site", "same-origin")], true), Ok(()));
        for site in ["cross-site", "same-site", "none", "\u{e4}"] {
            let refused = asked("POST", "/act", &[host, own, ("sec-fetch-site", site)], true);
            assert_eq!(refused, Err(Refused::Origin), "{site}");
        }
        for origin in [
            "null",
            "http://127.0.0.1:9662",
            "https://127.0.0.1:9661",
            "http://evil.example",
            "127.0.0.1:9661",
        ] {
            let refused = asked("POST", "/act", &[host, ("origin", origin)], true);
            assert_eq!(refused, Err(Refused::Origin), "{origin}");
        }
        assert_eq!(asked("POST", "/act", &[host], true), Err(Refused::Origin));
        assert_eq!(asked("POST", "/act", &[host, own, own], true), Err(Refused::Origin));
    }

    #[test]
    fn over_tls_the_names_of_the_certificate_are_answered_and_origins_are_https() {
        let names = |name: &str| matches!(name, "store.example" | "192.0.2.7" | "2001:db8::7");
        let asked = |method: &str, host: &str, origin: &str| {
            let mut map = HeaderMap::new();
            map.append("host", host.parse().unwrap());
            map.append("origin", origin.parse().unwrap());
            check(&method.parse().unwrap(), &Uri::from_static("/"), &map, true, Some(&names))
        };
        for host in
            ["store.example:9661", "store.example", "192.0.2.7:1", "[2001:db8::7]:9661", "localhost:1"]
        {
            assert_eq!(asked("POST", host, &format!("https://{host}")), Ok(()), "{host}");
            assert_eq!(asked("POST", host, &format!("http://{host}")), Err(Refused::Origin), "{host}");
        }
        for host in ["evil.example", "192.0.2.8", "store.example:x", "[store.example]", "2001:db8::7"] {
            assert_eq!(asked("GET", host, ""), Err(Refused::Host), "{host}");
        }
    }

    #[test]
    fn other_pages_can_link_here_and_load_nothing() {
        let host = ("host", "127.0.0.1:9661");
        for site in ["cross-site", "same-site"] {
            let link = [host, ("sec-fetch-site", site), ("sec-fetch-mode", "navigate")];
            assert_eq!(asked("GET", "/", &link, true), Ok(()));
            assert_eq!(asked("GET", "/live", &link, false), Err(Refused::Origin));
            let loads = [host, ("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")];
            assert_eq!(asked("GET", "/", &loads, true), Err(Refused::Origin));
        }
        assert_eq!(asked("GET", "/", &[host, ("sec-fetch-site", "none")], true), Ok(()));
    }
}

use super::*;

/// One entry of a hand-made archive.
struct Made {
    name: &'static str,
    kind: EntryType,
    link: &'static str,
    content: &'static [u8],
}

fn file(name: &'static str) -> Made {
    Made { name, kind: EntryType::Regular, link: "", content: b"content" }
}

fn directory(name: &'static str) -> Made {
    Made { name, kind: EntryType::Directory, link: "", content: b"" }
}

fn symlink(name: &'static str, link: &'static str) -> Made {
    Made { name, kind: EntryType::Symlink, link, content: b"" }
}

/// Names are written as they are, `..` included, as a forger would.
fn archive(entries: &[Made]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for made in entries {
        let mut header = tar::Header::new_gnu();
        let old = header.as_gnu_mut().unwrap();
        old.name[..made.name.len()].copy_from_slice(made.name.as_bytes());
        old.linkname[..made.link.len()].copy_from_slice(made.link.as_bytes());
        header.set_entry_type(made.kind);
        header.set_size(made.content.len() as u64);
        header.set_mode(0o4755);
        header.set_mtime(0);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(made.content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

/// Where it goes, and what arrives: name, link target, mode.
type Arrived = (String, Vec<(String, String, u32)>);

fn through(path: &str, archive: &[u8]) -> Result<Option<Arrived>, Refused> {
    let (part_tx, mut part_rx) = mpsc::channel(AHEAD);
    let copied = Copied { sandbox: "to".to_owned(), path: PathBuf::from(path) };
    let result = std::thread::scope(|scope| {
        let sieved = scope.spawn(|| sieve(&copied, archive, part_tx));
        let mut parts = Vec::new();
        while let Some(part) = part_rx.blocking_recv() {
            parts.push(part.part.unwrap());
        }
        sieved.join().unwrap().map(|()| parts)
    });
    let mut parts = result?.into_iter();
    let Some(first) = parts.next() else { return Ok(None) };
    let Part::Target(target) = first else { panic!("the first part is {first:?}") };
    let mut bytes = Vec::new();
    for part in parts {
        let Part::Data(data) = part else { panic!("a second target") };
        bytes.extend_from_slice(&data);
    }
    let mut arrived = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let entry = entry.unwrap();
        let link = entry.link_name().unwrap().map(|link| link.display().to_string());
        let name = entry.path().unwrap().display().to_string();
        arrived.push((name, link.unwrap_or_default(), entry.header().mode().unwrap()));
    }
    Ok(Some((target.path, arrived)))
}

fn names(path: &str, entries: &[Made]) -> Vec<String> {
    let (_, arrived) = through(path, &archive(entries)).unwrap().unwrap_or_default();
    arrived.into_iter().map(|(name, _, _)| name).collect()
}

#[test]
fn a_file_goes_to_its_own_path_without_set_user_id() {
    let (target, arrived) =
        through("/w/answer.py", &archive(&[file("answer.py")])).unwrap().unwrap();
    assert_eq!(target, "/w");
    assert_eq!(arrived, [("answer.py".to_owned(), String::new(), 0o755)]);
}

#[test]
fn an_archive_of_a_file_brings_nothing_else() {
    assert_eq!(names("/w/a", &[file("a"), file("tests"), file("b/c")]), ["a"]);
    assert!(names("/w/a", &[file("tests"), file("a")]).is_empty());
    assert!(names("/w/a", &[file("../a")]).is_empty());
    assert!(names("/w/a", &[symlink("a", "/solution")]).is_empty());
    assert!(names("/w/a", &[symlink("a", "solution")]).is_empty());
    let hard = Made { name: "a", kind: EntryType::Link, link: "solution", content: b"" };
    assert!(names("/w/a", &[hard]).is_empty());
    let device = Made { name: "a", kind: EntryType::Char, link: "", content: b"" };
    assert!(names("/w/a", &[device]).is_empty());
    assert_eq!(through("/w/a", &archive(&[])).unwrap(), None);
}

#[test]
fn a_directory_keeps_links_that_stay_inside_and_only_those() {
    let entries = [
        directory("./"),
        file("./a"),
        directory("./d"),
        directory("./d/e"),
        symlink("./d/e/up", "../../a"),
        symlink("./down", "d/e"),
        symlink("./here", "."),
        // What follows must not pass.
        symlink("./out", "../x"),
        symlink("./d/out", "../../x"),
        symlink("./abs", "/tests/solution"),
        symlink("./fooled", "here/../x"),
        file("./here/x"),
        symlink("./here/d/out", "../x"),
        file("./down/x"),
        file("../x"),
        file("./d/../../x"),
        file("./a/x"),
        file("./a"),
        file("./nowhere/x"),
        symlink("./d", ".."),
        directory("./down"),
    ];
    let (target, arrived) = through("/w/repo", &archive(&entries)).unwrap().unwrap();
    assert_eq!(target, "/w/repo");
    let arrived: Vec<_> =
        arrived.iter().map(|(name, link, _)| (name.as_str(), link.as_str())).collect();
    let expected =
        [("a", ""), ("d", ""), ("d/e", ""), ("d/e/up", "../../a"), ("down", "d/e"), ("here", ".")];
    assert_eq!(arrived, expected);
}

#[test]
fn an_archive_that_is_cut_or_none_at_all_is_refused() {
    let whole = archive(&[directory("./"), file("./a"), file("./b")]);
    for cut in [512 + 512 + 3, 512 + 1024 + 100] {
        let refused = through("/w/repo", &whole[..cut]).unwrap_err();
        assert!(matches!(refused, Refused::Malformed(_)), "{cut}: {refused:?}");
    }
    let refused = through("/w/repo", &[7; 2048]).unwrap_err();
    assert_eq!(refused.fault("/w/repo").kind, FaultKind::Action);
}

#[test]
fn more_than_the_bound_is_refused_before_it_is_read() {
    let mut header = tar::Header::new_gnu();
    header.set_path("a").unwrap();
    header.set_entry_type(EntryType::Regular);
    header.set_size(MAX_BYTES + 1);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_cksum();
    let refused = through("/w/a", header.as_bytes()).unwrap_err();
    assert!(matches!(refused, Refused::TooLong), "{refused:?}");
}

#[test]
fn a_directory_as_the_agent_packs_it_is_known_as_one() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("a"), "content").unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir(Path::new("."), dir.path()).unwrap();
    builder.append_path_with_name(dir.path().join("a"), Path::new("./a")).unwrap();
    let packed = builder.into_inner().unwrap();
    let (target, arrived) = through("/w/repo", &packed).unwrap().unwrap();
    assert_eq!((target.as_str(), arrived.len()), ("/w/repo", 1));
    assert_eq!(arrived[0].0, "a");
}

"""Parses a contact sheet as a browser would."""

from html.parser import HTMLParser


class Sheet(HTMLParser):
    """The page read back: all tags and attributes, and for each heading the text and the file names below it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.text, self.files, self.heading = {"": ""}, {"": []}, ""
        self.feed(text)
        self.text = {heading: " ".join(words.split()) for heading, words in self.text.items()}

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if dict(attributes).get("class") == "file":
            self.files[self.heading].append(dict(attributes)["title"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.text[self.heading] += " "

    def handle_data(self, data):
        if self.open[-1:] == ["h2"]:
            self.heading = data
            self.text[data], self.files[data] = "", []
        elif "style" not in self.open:
            self.text[self.heading] += data

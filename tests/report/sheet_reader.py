"""Parses a contact sheet as a browser would."""

from html.parser import HTMLParser

VOID = {"meta", "wbr", "input"}
"""Elements without an end tag."""


class Sheet(HTMLParser):
    """The page read back: all tags and attributes, and for each heading the text and the file names below it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.text, self.files, self.heading = {"": ""}, {"": []}, ""
        self._in_file = False
        self.feed(text)
        self.text = {heading: " ".join(words.split()) for heading, words in self.text.items()}

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if dict(attributes).get("class") == "file":
            self._in_file = True
            self.files[self.heading].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "p":
            self._in_file = False
        if tag in ("td", "th", "option", "label"):
            self.text[self.heading] += " "

    def handle_data(self, data):
        if self.open[-1:] == ["h2"] or self.open[-2:] == ["h3", "bdi"]:
            self.heading = data
            self.text[data], self.files[data] = "", []
        elif not {"style", "script"} & set(self.open):
            self.text[self.heading] += data
            if self._in_file:
                self.files[self.heading][-1] += data

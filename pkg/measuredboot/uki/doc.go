// Package uki computes what a boot of a unified kernel image (UKI, UAPI.5)
// measures, from the file alone. Package measuredboot makes reference values of it.
//
// What systemd-stub measures into PCR 11, from version 252 on: for each section
// that it knows, in a fixed order that is not the file's, the section's name with
// a NUL, then its content as loaded into memory. Later versions know more sections,
// always in the same relative order. Which ones a stub knows is read off the stub
// itself: the names are strings in its code. So a distribution's backport is
// measured as it behaves, and not as its version number suggests.
//
// What firmware measures into PCR 4 is the image's Authenticode digest (Windows
// Authenticode Portable Executable Signature Format, "Calculating the PE Image
// Hash"): the file without its checksum and its signatures.
//
// Not done: images with several profiles (.profile more than once), and sections
// of which the stub picks one that fits the hardware (.dtbauto, .efifw). They are
// refused, since what they measure is not one value.
package uki

/* SPDX-License-Identifier: MIT */

/*
 * Error table and faults
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/fault.h"

static const struct {
        const char *name;
        int number;
        const char *text;
} rows[] = {

#define XX(_name, _num, _text) {#_name, (_num), (_text)},
        NDBUS_ERROR_MAP(XX)
#undef XX
};

Test(error, every_code_is_negative_named_and_explained)
{
#define XX(_name, _num, _text)                                                                     \
        cr_expect_lt(NDBUS_E##_name, 0);                                                           \
        cr_expect_str_eq(ndbus_strerror(NDBUS_E##_name), _text);                                   \
        cr_expect_str_eq(ndbus_errname(NDBUS_E##_name), "NDBUS_E" #_name);
        NDBUS_ERROR_MAP(XX)
#undef XX
}

Test(error, numbers_are_unique_and_in_order)
{
        for (size_t i = 1; i < nd_array_size(rows); ++i)
                cr_expect_gt(rows[i].number, rows[i - 1].number, "%s", rows[i].name);
        cr_expect_gt(rows[0].number, 0);
        cr_expect_leq(rows[nd_array_size(rows) - 1].number, 99);
}

Test(error, names_and_texts_are_unique_and_texts_are_sentences)
{
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                size_t n = strlen(rows[i].text);

                cr_expect_neq(rows[i].text[n - 1], '.', "%s", rows[i].name);
                for (size_t k = 0; k < i; ++k) {
                        cr_expect_str_neq(rows[i].name, rows[k].name);
                        cr_expect_str_neq(rows[i].text, rows[k].text);
                }
        }
}

Test(error, anything_else_is_unknown_and_never_null)
{
        static const int others[] = {1, 5, -99, -100, -9999, INT32_MIN, INT32_MAX};

        for (size_t i = 0; i < nd_array_size(others); ++i) {
                cr_expect_str_eq(ndbus_strerror(others[i]), "unknown error");
                cr_expect_str_eq(ndbus_errname(others[i]), "NDBUS_E?");
        }
        cr_expect_str_eq(ndbus_strerror(0), "success");
        cr_expect_str_eq(ndbus_errname(0), "NDBUS_OK");
}

Test(fault, keeps_code_field_and_text)
{
        struct nd_fault fault = {.has_numbers = true, .value = 7};

        cr_expect_eq(nd_fault_set(&fault, NDBUS_ESHAPE, "frames[2].shape", "is %d", -1),
                     NDBUS_ESHAPE);
        cr_expect_eq(fault.code, NDBUS_ESHAPE);
        cr_expect_str_eq(fault.field, "frames[2].shape");
        cr_expect_str_eq(fault.text, "is -1");
        cr_expect(!fault.has_numbers);
        cr_expect_eq(fault.value, 0u);
}

Test(fault, returns_the_code_without_a_fault)
{
        cr_expect_eq(nd_fault_set(NULL, NDBUS_ETOPIC, "topic", "is empty"), NDBUS_ETOPIC);
        cr_expect_eq(nd_fault_set_limit(NULL, NDBUS_ETOO_BIG, "body", 2, 1, "bytes"),
                     NDBUS_ETOO_BIG);
}

Test(fault, shows_and_keeps_both_numbers)
{
        struct nd_fault fault;

        nd_fault_set_limit(&fault, NDBUS_ETOO_BIG, "body", 1048577, 1048576, "bytes");
        cr_expect_str_eq(fault.text, "is 1048577 bytes, the limit is 1048576 bytes");
        cr_expect(fault.has_numbers);
        cr_expect_eq(fault.value, 1048577u);
        cr_expect_eq(fault.limit, 1048576u);

        nd_fault_set_limit(&fault, NDBUS_ELIMIT, "--depth", UINT64_MAX, 10, "");
        cr_expect_str_eq(fault.text, "is 18446744073709551615, the limit is 10");

        nd_fault_set_exact(&fault, NDBUS_ELENGTH, "body_bytes", 8, 9, "bytes");
        cr_expect_str_eq(fault.text, "is 8 bytes, must be 9 bytes");
        cr_expect(fault.has_numbers);
        cr_expect_eq(fault.value, 8u);
        cr_expect_eq(fault.limit, 9u);

        nd_fault_set_exact(&fault, NDBUS_EPROTOCOL, "sequence", 2, 1, "");
        cr_expect_str_eq(fault.text, "is 2, must be 1");
}

Test(fault, shows_nothing_that_moves_a_cursor)
{
        struct nd_fault fault;

        nd_fault_set(&fault, NDBUS_ETOPIC, "to\npic", "\"%s\"", "a\x1b[2Jb\nc\x7f\xc3\xa9");
        cr_expect_str_eq(fault.field, "to?pic");
        cr_expect_str_eq(fault.text, "\"a?[2Jb?c???\"");
}

Test(fault, cuts_what_does_not_fit)
{
        struct nd_fault fault;
        char longer[1000];

        memset(longer, 'x', sizeof(longer) - 1);
        longer[sizeof(longer) - 1] = '\0';
        nd_fault_set(&fault, NDBUS_EINVAL, longer, "%s", longer);
        cr_expect_eq(strlen(fault.field), sizeof(fault.field) - 1);
        cr_expect_eq(strlen(fault.text), sizeof(fault.text) - 1);
}

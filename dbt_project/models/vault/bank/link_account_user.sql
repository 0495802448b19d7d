{#- Written by `lakehouse scaffold`, its own while unchanged: ed85f86a2bcb290e -#}
{{ link(src_pk='hk_account_user', src_fk=['hk_account', 'hk_user'], source_model='stg_bank__accounts') }}

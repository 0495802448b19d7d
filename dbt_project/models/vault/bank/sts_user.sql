{#- Written by `lakehouse scaffold`, its own while unchanged: ed6553bdbafba256 -#}
{{ sts_sat(src_pk='hk_user', source_model='stg_bank__users') }}

{#- Written by `lakehouse scaffold`, its own while unchanged: 401fc7a6cea94a60 -#}
{{ cdc_vault.timeline(source_model='sts_store', src_pk='hk_store', src_hashdiff='hd_status') }}
